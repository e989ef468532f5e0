// The operator's key: kept by this tab only, and shown to this router only.

const NAME = "tandem-key";

export function key() {
  return sessionStorage.getItem(NAME) ?? "";
}

export function keep(text) {
  if (text) sessionStorage.setItem(NAME, text);
  else sessionStorage.removeItem(NAME);
}

export function headers() {
  const known = key();
  return known ? { authorization: `Bearer ${known}` } : {};
}

// What a header can carry: anything else is no key, and fetch would throw.
export function canBeKey(text) {
  return /^[\x21-\x7e]+$/.test(text);
}
