// What is done to each row by itself: norms, rotary positions, embeddings, gates.
#pragma once

#include "simd.h"

// RMSNorm (Zhang and Sennrich 2019): out = x / sqrt(mean(x^2) + eps) * weight.
INLINE Wide norm_factor(const float* x, int count, float eps) {
  Wide squares = all(0.f);
  for (int at = 0; at < count; at += LANES) squares = fused(load(x + at), load(x + at), squares);
  return all(1.f / std::sqrt(sum(squares) / static_cast<float>(count) + eps));
}

static void norm(const float* x, const float* weight, Input* out, int count, float eps) {
  const Wide factor = norm_factor(x, count, eps);
  for (int at = 0; at < count; at += LANES)
    store_input(out + at, multiply(multiply(load(x + at), factor), load(weight + at)));
}

static void norm_in_place(float* x, const float* weight, int count, float eps) {
  const Wide factor = norm_factor(x, count, eps);
  for (int at = 0; at < count; at += LANES) store(x + at, multiply(multiply(load(x + at), factor), load(weight + at)));
}

// Rotary position embedding (Su et al. 2021) over halves: a is of the first half of a head, b of the second.
INLINE void turn(Wide& a, Wide& b, Wide cos, Wide sin) {
  const Wide first = fused_negative(b, sin, multiply(a, cos));
  b = fused(a, sin, multiply(b, cos));
  a = first;
}

static void embed(const bf16* row, float* out, int count) {
  for (int at = 0; at < count; at += LANES) store(out + at, load_bf16(row + at));
}

// SiLU of the gate, times the other.
INLINE Wide gated(Wide gate, Wide up) {
  const Wide negative = subtract(all(0.f), gate);
  return multiply(divide(gate, add(all(1.f), exponential(negative))), up);
}

INLINE void add_to(float* out, Wide x) { store(out, add(load(out), x)); }
