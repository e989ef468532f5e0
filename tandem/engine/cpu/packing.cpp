// Packs a matrix once, so that a product reads it from one end to the other.
//
// Sixteen rows, which are sixteen outputs, are a panel; two panels are a pair: [inputs / 2][2 panels][16 outputs][2].
#include <algorithm>

#include "interface.h"

// `weights` is [outputs, inputs]; the i-th panel of the result holds the rows [16 * order[i], 16 * order[i] + 16).
// Rows behind the last one are zero. `packed` has 16 * panels * inputs items; panels and inputs are even.
extern "C" void tandem_pack(const bf16* weights, bf16* packed, int32_t outputs, int32_t inputs, const int32_t* order,
                            int32_t panels) {
  for (int panel = 0; panel < panels; panel++) {
    const int first = order[panel] * LANES;
    bf16* to = packed + static_cast<int64_t>(panel / 2) * inputs * 2 * LANES + panel % 2 * 2 * LANES;
    for (int lane = 0; lane < LANES; lane++) {
      const bool there = first + lane < outputs;
      const bf16* row = weights + static_cast<int64_t>(first + lane) * inputs;
      for (int pair = 0; pair < inputs / 2; pair++) {
        bf16* both = to + static_cast<int64_t>(pair) * 4 * LANES + lane * 2;
        both[0] = there ? row[pair * 2] : 0;
        both[1] = there ? row[pair * 2 + 1] : 0;
      }
    }
  }
}
