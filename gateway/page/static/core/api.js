// The gateway's JSON over HTTP: the session's cookie, the CSRF token, errors as one type.

const TIMEOUT_MS = 10_000;

/** What the gateway refused, or that it did not answer (`status` 0). */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** A client for one session: `/admin/session` or `/usage/session`. */
export function apiOf(sessionPath) {
  let csrf = null;
  let onSignedOut = () => {};

  async function send(method, path, body, signal) {
    const headers = {};
    if (body !== undefined) headers["content-type"] = "application/json";
    if (csrf !== null && method !== "GET") headers["x-ratoon-csrf"] = csrf;
    const response = await answerOf(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal: anyOf(AbortSignal.timeout(TIMEOUT_MS), signal),
    });
    const content = await contentOf(response);
    if (response.ok) return content;
    if (response.status === 401 && csrf !== null) {
      csrf = null;
      onSignedOut();
    }
    throw errorOf(response, content);
  }

  return {
    get: (path, signal) => send("GET", path, undefined, signal),
    post: (path, body) => send("POST", path, body),
    patch: (path, body) => send("PATCH", path, body),
    remove: (path) => send("DELETE", path),
    /** Called when the session has ended without a sign-out. */
    whenSignedOut: (call) => void (onSignedOut = call),

    /** True if the browser has a session already; ApiError if that cannot be known. */
    async resume() {
      try {
        csrf = (await send("GET", sessionPath)).csrf;
        return true;
      } catch (error) {
        if (error.status === 401) return false;
        throw error;
      }
    },
    async signIn(key) {
      csrf = (await send("POST", sessionPath, { key })).csrf;
    },
    async signOut() {
      await send("DELETE", sessionPath);
      csrf = null;
    },
  };
}

async function answerOf(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (options.signal.aborted && options.signal.reason?.name === "AbortError") throw error;
    throw new ApiError(0, "no_answer", "The gateway does not answer.");
  }
}

async function contentOf(response) {
  const text = await response.text();
  try {
    return text === "" ? null : JSON.parse(text);
  } catch {
    return null;
  }
}

function errorOf(response, content) {
  const error = content?.error ?? {};
  const message = error.message ?? `The gateway answered with status ${response.status}.`;
  return new ApiError(response.status, error.code ?? null, sentence(message));
}

function sentence(message) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

function anyOf(first, second) {
  return second === undefined ? first : AbortSignal.any([first, second]);
}
