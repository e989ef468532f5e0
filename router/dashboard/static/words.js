// The ranks' words, where they would be misread by somebody in a hurry.

const WORDS = { gone: "done" };

export function word(state) {
  return WORDS[state] ?? state.replaceAll("_", " ");
}

// How an attempt is, or how it ended.
export function outcome(one) {
  return one.reason ? word(one.reason) : word(one.state);
}
