// How keys and values lie in the pages of the cache: in the order in which attention reads them.
//
// A page's block is [kv_heads][page_size / 16 tiles]; a tile is the keys of sixteen tokens, [head_dim / 2][16][2], and
// their values, [8][head_dim][2]: pairs of dimensions, and pairs of tokens. To all others a block is bytes.
#pragma once

#include "interface.h"

constexpr int TILE = LANES;  // tokens

class Pages {
 public:
  Pages(const Stage& stage, int layer)
      : base_(stage.pages + layer * stage.layer_items),
        block_items_(stage.block_items),
        dim_(stage.head_dim),
        page_size_(stage.page_size) {}

  // The tile of a position of the sequence with this page table. Its values follow tile_keys() items behind.
  bf16* tile(const int32_t* table, int position, int kv_head) const {
    const int inside = kv_head * (page_size_ / TILE) + position % page_size_ / TILE;
    return base_ + table[position / page_size_] * block_items_ + static_cast<int64_t>(inside) * 2 * tile_keys();
  }

  int tile_keys() const { return TILE * dim_; }

  // Sixteen neighbouring dimensions, from `first` on, of the key of one token.
  void put_key(bf16* tile, int position, int first, Wide x) const {
    alignas(32) bf16 items[LANES];
    store_bf16(items, x);
    bf16* to = tile + first * TILE + position % TILE * 2;
    for (int pair = 0; pair < LANES / 2; pair++) std::memcpy(to + pair * 2 * TILE, items + pair * 2, 2 * sizeof(bf16));
  }

  // The same of its value.
  void put_value(bf16* tile, int position, int first, Wide x) const {
    alignas(32) bf16 items[LANES];
    store_bf16(items, x);
    bf16* to = tile + tile_keys() + position % TILE / 2 * 2 * dim_ + first * 2 + position % 2;
    for (int each = 0; each < LANES; each++) to[each * 2] = items[each];
  }

 private:
  bf16* base_;
  int64_t block_items_;
  int dim_, page_size_;
};
