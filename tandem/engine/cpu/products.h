// The one inner loop: rows of inputs times panels of weights. Linears, scores and weighted sums of values all use it.
#pragma once

#include "simd.h"

// Where the weights of `count` pieces lie: piece i begins at starts[i] and has `pairs` steps of `stride` bf16. The v-th
// sixteen outputs lie offsets[v] bf16 further on.
struct Panels {
  const bf16* const* starts;
  int count;
  int pairs;
  int64_t stride;
  int64_t offsets[4];
};

constexpr int MOST_ROWS = 12;  // of one call, with one or two vectors of outputs: 24 of AVX512's 32 registers are sums
constexpr int MOST_ROWS_FOUR = 6;  // with three or four
constexpr int ROWS_OF_AVX2 = 4;    // times one vector of outputs, which is two registers: 8 of 16 are sums
constexpr int FAR = 1024;  // bf16 that memory is asked for ahead, where there are few rows and much to fetch

template <int ROWS, int VECTORS>
static void sums_of(const Input* x, int64_t x_stride, const Panels& w, float* out, int64_t out_stride, bool onto) {
  Wide sums[ROWS][VECTORS];
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) sums[row][v] = onto ? load(out + row * out_stride + v * LANES) : all(0.f);
  for (int piece = 0; piece < w.count; piece++) {
    const bf16* panel = w.starts[piece];
    for (int pair = 0; pair < w.pairs; pair++, panel += w.stride, x += 2) {
      Pairs weights[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) {
        weights[v] = load_pairs(panel + w.offsets[v]);
        if (ROWS <= 4) _mm_prefetch(reinterpret_cast<const char*>(panel + w.offsets[v] + FAR), _MM_HINT_T0);
      }
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; row++) {
        const Two inputs = both(x + row * x_stride);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[row][v] = take_in(sums[row][v], weights[v], inputs);
      }
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) store(out + row * out_stride + v * LANES, sums[row][v]);
}

#if defined(__AVX512F__)

// out[row][0..16 * vectors) = (onto ? itself : 0) + x[row] . w, in the order of the inputs.
static void sums_of(int rows, int vectors, const Input* x, int64_t x_stride, const Panels& w, float* out,
                    int64_t out_stride, bool onto) {
#define CASE(n, v) case n * 8 + v: return sums_of<n, v>(x, x_stride, w, out, out_stride, onto)
#define CASES(n) CASE(n, 1); CASE(n, 2)
  switch (rows * 8 + vectors) {
    CASES(1); CASES(2); CASES(3); CASES(4); CASES(5); CASES(6); CASES(7); CASES(8); CASES(9); CASES(10); CASES(11);
    CASES(12);
    CASE(1, 3); CASE(2, 3); CASE(3, 3); CASE(4, 3); CASE(5, 3); CASE(6, 3);
    CASE(1, 4); CASE(2, 4); CASE(3, 4); CASE(4, 4); CASE(5, 4); CASE(6, 4);
  }
#undef CASES
#undef CASE
}

#else

static void sums_of(int rows, int vectors, const Input* x, int64_t x_stride, const Panels& w, float* out,
                    int64_t out_stride, bool onto) {
  const bf16* starts[4];  // pieces are at most four: a block of attention
  for (int v = 0; v < vectors; v++, out += LANES) {
    for (int piece = 0; piece < w.count; piece++) starts[piece] = w.starts[piece] + w.offsets[v];
    const Panels one = {starts, w.count, w.pairs, w.stride, {}};
    for (int row = 0; row < rows; row += ROWS_OF_AVX2) {
      const Input* from = x + row * x_stride;
      float* to = out + row * out_stride;
      switch (rows - row) {
        case 1: sums_of<1, 1>(from, x_stride, one, to, out_stride, onto); break;
        case 2: sums_of<2, 1>(from, x_stride, one, to, out_stride, onto); break;
        case 3: sums_of<3, 1>(from, x_stride, one, to, out_stride, onto); break;
        default: sums_of<4, 1>(from, x_stride, one, to, out_stride, onto);
      }
    }
  }
}

#endif
