// Whether the person is signed in: found out at the start, changed by signing in and out.
import { useCallback, useEffect, useState } from "./html.js";

/** Returns {state, signedIn, signOut, retry}; `state` is asking, in, out, ended or unreachable. */
export function useSession(api) {
  const [state, setState] = useState("asking");
  const retry = useCallback(async () => {
    setState("asking");
    try {
      setState((await api.resume()) ? "in" : "out");
    } catch {
      setState("unreachable");
    }
  }, []);
  useEffect(() => {
    api.whenSignedOut(() => setState("ended"));
    retry();
  }, []);
  const signOut = async () => {
    await api.signOut();
    setState("out");
  };
  return { state, signedIn: () => setState("in"), signOut, retry };
}
