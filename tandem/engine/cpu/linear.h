// Linear layers: all rows of a plan times a packed matrix, shared out over the members of a team.
#pragma once

#include <algorithm>
#include <atomic>

#include "products.h"
#include "team.h"

constexpr int ROW_BLOCK = 144;  // rows whose inputs stay in the second-level cache while weights go by

// A few rows times one or two pairs of panels. `use(row, pair, a, b)` gets the outputs of both panels of a pair.
template <class Use>
static void few_rows(const Input* x, int inputs, const bf16* packed, int from, int to, int pair, int pairs, Use use) {
  alignas(64) float out[MOST_ROWS * 2 * LANES];
  static_assert(MOST_ROWS * 2 >= MOST_ROWS_FOUR * 4, "both shapes of a call fit");
  const int64_t pair_items = static_cast<int64_t>(inputs) * 2 * LANES;
  const bf16* start = packed + pair * pair_items;
  const Panels panels = {&start, 1, inputs / 2, 4 * LANES, {0, 2 * LANES, pair_items, pair_items + 2 * LANES}};
  const int width = pairs * 2 * LANES;
  sums_of(to - from, pairs * 2, x + static_cast<int64_t>(from) * inputs, inputs, panels, out, width, false);
  for (int row = from; row < to; row++)
    for (int each = 0; each < pairs; each++) {
      const float* sums = out + (row - from) * width + each * 2 * LANES;
      use(row, pair + each, load(sums), load(sums + LANES));
    }
}

// x is [rows, inputs]. Members take chunks of pairs until `taken`, zero at first, says that none is left, so who is
// held up by others on this machine holds up nobody. Who computes an output does not change it.
template <class Use>
static void linear(Member& self, std::atomic<int>& taken, int rows, const Input* x, int inputs, const bf16* packed,
                   int pairs, Use use) {
  const int chunk = self.size() == 1 ? pairs : std::max(2, (pairs / (self.size() * 4) + 1) & ~1);
  const int chunks = (pairs + chunk - 1) / chunk, blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
  for (int item; (item = taken.fetch_add(1, std::memory_order_relaxed)) < chunks * blocks;) {
    const int first = item / chunks * ROW_BLOCK, count = std::min(rows - first, ROW_BLOCK);
    const int last_pair = std::min(pairs, (item % chunks + 1) * chunk), parts = (count + MOST_ROWS - 1) / MOST_ROWS;
    for (int pair = item % chunks * chunk; pair < last_pair;) {
      const int now = std::min(count <= MOST_ROWS_FOUR ? 2 : 1, last_pair - pair);
      for (int part = 0; part < parts; part++)  // of equal size
        few_rows(x, inputs, packed, first + count * part / parts, first + count * (part + 1) / parts, pair, now, use);
      pair += now;
    }
  }
}
