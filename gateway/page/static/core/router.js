// Which view is shown: the part of the address after `#/`, split at its slashes.
import { useEffect, useState } from "./html.js";

export function useRoute() {
  const [route, setRoute] = useState(current);
  useEffect(() => {
    const changed = () => setRoute(current());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

export function goTo(...parts) {
  location.hash = hrefOf(...parts);
}

export function hrefOf(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

function current() {
  return location.hash.replace(/^#\/?/, "").split("/").map(decoded);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
