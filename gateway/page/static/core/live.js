// Data that is asked for again and again while its view is shown and the page is visible.
import { useEffect, useRef, useState } from "./html.js";

const CONNECTION = ["online", "offline"]; // the browser's; then it is known sooner

/**
 * `load(signal, before)` every `everyMs`; what came last is kept when a later call fails.
 * Returns {data, error, at, again}: `at` is when `data` came, in ms; `again()` asks at once.
 * `error` beside `data` means that `data` is stale. Data of other `inputs` is dropped.
 */
export function useLive(load, everyMs, inputs = []) {
  const [state, setState] = useState({ data: null, error: null, at: null });
  const latest = useRef(load);
  const askAgain = useRef(() => {});
  latest.current = load;

  useEffect(() => {
    let timer = null;
    let running = null;
    let data = null;
    setState({ data: null, error: null, at: null });

    async function ask() {
      clearTimeout(timer);
      running?.abort();
      const mine = new AbortController();
      running = mine;
      try {
        const came = await latest.current(mine.signal, data);
        if (mine.signal.aborted) return;
        data = came;
        setState({ data, error: null, at: Date.now() });
      } catch (error) {
        if (mine.signal.aborted) return;
        setState((before) => ({ ...before, error }));
      }
      if (!document.hidden) timer = setTimeout(ask, everyMs);
    }
    const shown = () => void (document.hidden ? clearTimeout(timer) : ask());

    askAgain.current = ask;
    document.addEventListener("visibilitychange", shown);
    for (const change of CONNECTION) addEventListener(change, ask);
    ask();
    return () => {
      document.removeEventListener("visibilitychange", shown);
      for (const change of CONNECTION) removeEventListener(change, ask);
      clearTimeout(timer);
      running?.abort();
    };
  }, [everyMs, ...inputs]);

  return { ...state, again: () => askAgain.current() };
}
