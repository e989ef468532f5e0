// Attention of a few queries of one sequence that share a key head, over the pages of the cache.
//
// Keys come in blocks of 64 positions that begin at multiples of 64, whatever the chunk or the page table: so the order
// of every sum depends on positions only. Prefill and decode are the same code.
#pragma once

#include <algorithm>

#include "pages.h"
#include "products.h"

constexpr int BLOCK = 64;              // positions
constexpr int TILES = BLOCK / TILE;    // of a block
constexpr int MOST_QUERIES = MOST_ROWS;
constexpr int MOST_DIM = 128;
constexpr float NOWHERE = -1e30f;      // the score of what is not seen

// The queries of `tokens` neighbouring tokens, from `position` on, by all heads of one key head.
struct Queries {
  const Input* items;  // [tokens * group, head_dim], by token
  int tokens, group;
  int position;
  int window;  // 0: all
  float scale;

  int count() const { return tokens * group; }
  int sees_to(int query) const { return position + query / group + 1; }  // not included
  int sees_from(int query) const { return window ? std::max(0, sees_to(query) - window) : 0; }
};

class Attention {
 public:
  Attention(const Pages& pages, int dim) : pages_(pages), dim_(dim) {}

  // out[query] is where its result goes, head_dim inputs of the next linear layer.
  void run(const Queries& queries, const int32_t* table, int kv_head, Input* const* out) {
    const int count = queries.count(), end = queries.sees_to(count - 1);
    for (int query = 0; query < count; query++) {
      most_[query] = NOWHERE;
      weight_[query] = all(0.f);
    }
    std::fill(sums_, sums_ + count * dim_, 0.f);
    for (int first = queries.sees_from(0) / BLOCK * BLOCK; first < end; first += BLOCK) {
      const int tiles = (std::min(end - first, BLOCK) + TILE - 1) / TILE;
      for (int tile = 0; tile < tiles; tile++) keys_[tile] = pages_.tile(table, first + tile * TILE, kv_head);
      score(queries, tiles);
      for (int query = 0; query < count; query++) weigh(queries, query, first, tiles);
      add_values(queries, first, tiles, end);
    }
    for (int query = 0; query < count; query++) {
      const Wide share = all(1.f / sum(weight_[query]));
      for (int at = 0; at < dim_; at += LANES)
        store_input(out[query] + at, multiply(load(sums_ + query * dim_ + at), share));
    }
  }

 private:
  // scores_[query][position] of the whole block; behind its last tile there is nothing of use.
  void score(const Queries& queries, int tiles) {
    const int at_once = queries.count() <= MOST_ROWS_FOUR ? 4 : 2;
    for (int tile = 0; tile < tiles; tile += at_once) {
      const int now = std::min(at_once, tiles - tile);
      Panels panels = {keys_ + tile, 1, dim_ / 2, 2 * TILE, {}};
      for (int each = 0; each < now; each++) panels.offsets[each] = keys_[tile + each] - keys_[tile];
      sums_of(queries.count(), now, queries.items, dim_, panels, scores_ + tile * TILE, BLOCK, false);
    }
  }

  // Turn a query's scores into weights, and what it has summed up so far into the new scale.
  void weigh(const Queries& queries, int query, int first, int tiles) {
    const int from = queries.sees_from(query) - first, to = queries.sees_to(query) - first;
    Wide scores[TILES], most = all(NOWHERE);
    for (int tile = 0; tile < tiles; tile++) {
      const int begin = std::clamp(from - tile * TILE, 0, TILE), end = std::clamp(to - tile * TILE, 0, TILE);
      const Wide scaled = multiply(load(scores_ + query * BLOCK + tile * TILE), all(queries.scale));
      scores[tile] = inside(scaled, begin, end, all(NOWHERE));
      most = larger(most, scores[tile]);
    }
    const float before = most_[query], now = std::max(before, largest(most));
    Wide added = all(0.f);
    for (int tile = 0; tile < tiles; tile++) {
      const int begin = std::clamp(from - tile * TILE, 0, TILE), end = std::clamp(to - tile * TILE, 0, TILE);
      const Wide weight = inside(exponential(subtract(scores[tile], all(now))), begin, end, all(0.f));
      added = add(added, weight);
      store_input(weights_ + query * BLOCK + tile * TILE, weight);
    }
    if (now == before) {
      weight_[query] = add(weight_[query], added);
      return;
    }
    const Wide shrink = exponential(all(before - now));
    weight_[query] = fused(weight_[query], shrink, added);
    for (float* at = sums_ + query * dim_; at < sums_ + (query + 1) * dim_; at += LANES)
      store(at, multiply(load(at), shrink));
    most_[query] = now;
  }

  void add_values(const Queries& queries, int first, int tiles, int end) {
    const bf16* values[TILES];
    for (int tile = 0; tile < tiles; tile++) values[tile] = keys_[tile] + pages_.tile_keys();
    const int left = end - first - (tiles - 1) * TILE;
    if (left < TILE) values[tiles - 1] = without_leftovers(values[tiles - 1], left);
    const int at_once = queries.count() <= MOST_ROWS_FOUR ? 4 : 2;
    for (int at = 0; at < dim_; at += at_once * LANES) {
      const int now = std::min(at_once, (dim_ - at) / LANES);
      const bf16* starts[TILES];
      for (int tile = 0; tile < tiles; tile++) starts[tile] = values[tile] + at * 2;
      const Panels panels = {starts, tiles, TILE / 2, 2 * dim_, {0, 2 * LANES, 4 * LANES, 6 * LANES}};
      sums_of(queries.count(), now, weights_, BLOCK, panels, sums_ + at, dim_, true);
    }
  }

  // A tile with zeros behind its first tokens: a weight of zero does not silence a NaN that a page's last owner left.
  const bf16* without_leftovers(const bf16* tile, int tokens) {
    std::fill(clean_, clean_ + TILE * dim_, bf16{0});
    std::copy(tile, tile + tokens / 2 * 2 * dim_, clean_);
    if (tokens % 2)
      for (int at = tokens / 2 * 2 * dim_; at < (tokens / 2 + 1) * 2 * dim_; at += 2) clean_[at] = tile[at];
    return clean_;
  }

  const Pages& pages_;
  const int dim_;
  const bf16* keys_[TILES];
  float most_[MOST_QUERIES];
  Wide weight_[MOST_QUERIES];  // the sum of its lanes is what the weights add up to
  alignas(64) float scores_[MOST_QUERIES * BLOCK];
  alignas(64) Input weights_[MOST_QUERIES * BLOCK];
  alignas(64) float sums_[MOST_QUERIES * MOST_DIM];
  alignas(64) bf16 clean_[TILE * MOST_DIM];
};
