// A whole pipeline stage in one call: its layers, and the embedding and the logits where it has them.
//
// The residual stream is fp32, also between stages; what a linear layer or attention takes in is an `Input`. Keys and
// values are always read back from the cache's bf16. So a token's result depends on its sequence only.
#include <cstdlib>
#include <memory>
#include <new>

#include "attention.h"
#include "cores.h"
#include "linear.h"
#include "rows.h"

namespace {

constexpr int LINEARS = 4;  // of a layer
constexpr int64_t ALIGNMENT = 64;

// Memory that grows when it must; what was in it is lost then.
template <class Item>
class Scratch {
 public:
  ~Scratch() { std::free(items_); }

  Item* of(int64_t count) {
    if (count > count_) {
      std::free(items_);
      const int64_t bytes = (count * static_cast<int64_t>(sizeof(Item)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
      items_ = static_cast<Item*>(std::aligned_alloc(ALIGNMENT, bytes));
      count_ = items_ ? count : 0;
      if (!items_) throw std::bad_alloc();
    }
    return items_;
  }

 private:
  Item* items_ = nullptr;
  int64_t count_ = 0;
};

// A few tokens of one row of the plan, for attention; where the first one's result goes.
struct Piece {
  int row, first, count, out;
};

struct Worker {
  Worker(int threads, const Cores& cores) : team(threads), cores(cores) {}

  Team team;
  const Cores cores;
  Scratch<Input> normed, queries, attended, inner;
  Scratch<float> raw;
  std::vector<int> position, row_of;
  std::vector<Piece> pieces, sampled;
  std::unique_ptr<std::atomic<int>[]> counters;
  int counted = 0;
};

class Run {
 public:
  Run(Worker& worker, const Stage& stage, const Batch& batch) : worker_(worker), stage_(stage), batch_(batch) {
    const int64_t tokens = std::max(batch.tokens, batch.sampled);
    normed_ = worker.normed.of(tokens * stage.hidden);
    queries_ = worker.queries.of(tokens * stage.heads * stage.head_dim);
    attended_ = worker.attended.of(tokens * stage.heads * stage.head_dim);
    inner_ = worker.inner.of(tokens * stage.intermediate);
    raw_ = has_norms() ? worker.raw.of(tokens * turned_heads() * stage.head_dim) : nullptr;
    lay_out();
    const int needed = stage.layers * (LINEARS + 1) + 1;
    if (worker.counted < needed) {
      worker.counters = std::make_unique<std::atomic<int>[]>(needed);
      worker.counted = needed;
    }
    for (int each = 0; each < needed; each++) worker.counters[each].store(0, std::memory_order_relaxed);
  }

  // Each layer is a run of its own, with as many threads as there are cores for this stage by then.
  void work() const {
    worker_.cores.computes(true);
    if (stage_.embedding) together(true, [this](Member& self) { embed_tokens(self); });
    for (int layer = 0; layer < stage_.layers; layer++) {
      const bool more = batch_.sampled || layer + 1 < stage_.layers;
      together(more, [this, layer](Member& self) { run_layer(self, layer); });
    }
    if (batch_.sampled) together(false, [this](Member& self) { run_head(self); });
    worker_.cores.computes(false);
  }

 private:
  void together(bool more, const std::function<void(Member&)>& part) const {
    worker_.team.run(worker_.cores.part(), more, part);
  }

  bool has_norms() const { return stage_.layers && stage_.layer[0].q_norm; }
  int turned_heads() const { return stage_.heads + stage_.kv_heads; }
  int group() const { return stage_.heads / stage_.kv_heads; }
  float* hidden(int token) const { return batch_.hidden + static_cast<int64_t>(token) * stage_.hidden; }
  std::atomic<int>& counter(int layer, int number) const { return worker_.counters[layer * (LINEARS + 1) + number]; }
  const int32_t* table(int token) const { return batch_.pages + batch_.first_page[worker_.row_of[token]]; }

  void lay_out() {
    worker_.position.resize(batch_.tokens);
    worker_.row_of.resize(batch_.tokens);
    worker_.pieces.clear();
    const int most = std::max(1, MOST_QUERIES / group());
    for (int row = 0; row < batch_.rows; row++) {
      const int first = batch_.first_token[row], end = batch_.first_token[row + 1];
      for (int token = first; token < end; token++) {
        worker_.position[token] = batch_.start[row] + token - first;
        worker_.row_of[token] = row;
      }
      for (int token = first; token < end; token += most)
        worker_.pieces.push_back({row, token, std::min(most, end - token), token});
    }
    worker_.sampled.clear();
    for (int each = 0; each < batch_.sampled; each++)
      worker_.sampled.push_back({worker_.row_of[batch_.sampled_at[each]], batch_.sampled_at[each], 1, each});
  }

  void embed_tokens(Member& self) const {
    for (int token = self.from(batch_.tokens); token < self.to(batch_.tokens); token++)
      embed(stage_.embedding + static_cast<int64_t>(batch_.ids[token]) * stage_.hidden, hidden(token), stage_.hidden);
  }

  // Once the last layer's keys and values are in the cache, only tokens that are sampled from have anything to give.
  void run_layer(Member& self, int number) const {
    const bool last = stage_.head && number == stage_.layers - 1;
    const int count = last ? batch_.sampled : batch_.tokens;
    const Layer& layer = stage_.layer[number];
    const Pages pages(stage_, number);
    norm_rows(self, layer.attn_norm, batch_.tokens);
    self.meet();
    make_heads(self, layer, pages, counter(number, 0));
    self.meet();
    if (layer.q_norm) {
      turn_heads(self, layer, pages);
      self.meet();
    }
    if (self.number == 0) {
      batch_.layer_ran(number);
      if (last) keep_sampled();
    }
    attend(last ? worker_.sampled : worker_.pieces, pages, counter(number, 1));
    self.meet();
    add_linear(self, counter(number, 2), count, attended_, stage_.heads * stage_.head_dim, layer.attn_out);
    self.meet();
    norm_rows(self, layer.ffn_norm, count);
    self.meet();
    linear(self, counter(number, 3), count, normed_, stage_.hidden, layer.gate_up, stage_.intermediate / LANES,
           [&](int row, int pair, Wide gate, Wide up) {
             const int64_t at = static_cast<int64_t>(row) * stage_.intermediate + pair * LANES;
             store_input(inner_ + at, gated(gate, up));
           });
    self.meet();
    add_linear(self, counter(number, 4), count, inner_, stage_.intermediate, layer.down);
  }

  void keep_sampled() const {
    for (int each = 0; each < batch_.sampled; each++)  // in order: none is overwritten before it has been moved
      std::copy_n(hidden(batch_.sampled_at[each]), stage_.hidden, hidden(each));
  }

  void norm_rows(Member& self, const float* weight, int rows) const {
    for (int row = self.from(rows); row < self.to(rows); row++)
      norm(hidden(row), weight, normed_ + static_cast<int64_t>(row) * stage_.hidden, stage_.hidden, stage_.eps);
  }

  void add_linear(Member& self, std::atomic<int>& taken, int rows, const Input* x, int inputs,
                  const bf16* packed) const {
    linear(self, taken, rows, x, inputs, packed, stage_.hidden / (2 * LANES), [&](int row, int pair, Wide a, Wide b) {
      add_to(hidden(row) + pair * 2 * LANES, a);
      add_to(hidden(row) + pair * 2 * LANES + LANES, b);
    });
  }

  // Queries, keys and values. A pair of panels is a part of the first half of a head and the same of the second.
  void make_heads(Member& self, const Layer& layer, const Pages& pages, std::atomic<int>& taken) const {
    const int half = stage_.head_dim / 2, per_head = half / LANES;
    const int heads = stage_.heads + 2 * stage_.kv_heads;
    linear(self, taken, batch_.tokens, normed_, stage_.hidden, layer.qkv, heads * per_head,
           [&](int token, int pair, Wide a, Wide b) {
             const int head = pair / per_head, at = pair % per_head * LANES;
             if (layer.qkv_bias) {
               const float* bias = layer.qkv_bias + head * stage_.head_dim + at;
               a = add(a, load(bias));
               b = add(b, load(bias + half));
             }
             if (head >= turned_heads()) {
               bf16* tile = pages.tile(table(token), worker_.position[token], head - turned_heads());
               pages.put_value(tile, worker_.position[token], at, a);
               pages.put_value(tile, worker_.position[token], at + half, b);
             } else if (layer.q_norm) {
               float* to = raw_ + (static_cast<int64_t>(token) * turned_heads() + head) * stage_.head_dim + at;
               store(to, a);
               store(to + half, b);
             } else {
               put_turned(pages, token, head, at, a, b);
             }
           });
  }

  // With norms over whole heads, which a pair of panels does not see.
  void turn_heads(Member& self, const Layer& layer, const Pages& pages) const {
    for (int token = self.from(batch_.tokens); token < self.to(batch_.tokens); token++)
      for (int head = 0; head < turned_heads(); head++) {
        float* x = raw_ + (static_cast<int64_t>(token) * turned_heads() + head) * stage_.head_dim;
        norm_in_place(x, head < stage_.heads ? layer.q_norm : layer.k_norm, stage_.head_dim, stage_.eps);
        for (int at = 0; at < stage_.head_dim / 2; at += LANES)
          put_turned(pages, token, head, at, load(x + at), load(x + at + stage_.head_dim / 2));
      }
  }

  void put_turned(const Pages& pages, int token, int head, int at, Wide a, Wide b) const {
    const int half = stage_.head_dim / 2, position = worker_.position[token];
    const int64_t angle = static_cast<int64_t>(position) * half + at;
    turn(a, b, load(stage_.cos + angle), load(stage_.sin + angle));
    if (head < stage_.heads) {
      Input* to = query(token, head) + at;
      store_input(to, a);
      store_input(to + half, b);
      return;
    }
    bf16* tile = pages.tile(table(token), position, head - stage_.heads);
    pages.put_key(tile, position, at, a);
    pages.put_key(tile, position, at + half, b);
  }

  Input* query(int token, int head) const {
    return queries_ + (static_cast<int64_t>(token) * stage_.heads + head) * stage_.head_dim;
  }

  // Pieces late in their sequences take longest, so they go first.
  void attend(const std::vector<Piece>& all, const Pages& pages, std::atomic<int>& taken) const {
    const int pieces = static_cast<int>(all.size()), dim = stage_.head_dim;
    Attention attention(pages, dim);
    alignas(64) Input items[MOST_QUERIES * MOST_DIM];
    Input* out[MOST_QUERIES];
    for (int item; (item = taken.fetch_add(1, std::memory_order_relaxed)) < pieces * stage_.kv_heads;) {
      const Piece& piece = all[pieces - 1 - item / stage_.kv_heads];
      const int kv_head = item % stage_.kv_heads, first_head = kv_head * group();
      for (int each = 0; each < piece.count; each++) {
        std::copy_n(query(piece.first + each, first_head), group() * dim, items + each * group() * dim);
        for (int head = 0; head < group(); head++) {
          const int64_t at = static_cast<int64_t>(piece.out + each) * stage_.heads + first_head + head;
          out[each * group() + head] = attended_ + at * dim;
        }
      }
      const Queries queries = {items,          piece.count,
                               group(),        worker_.position[piece.first],
                               stage_.window,  1.f / std::sqrt(static_cast<float>(dim))};
      attention.run(queries, batch_.pages + batch_.first_page[piece.row], kv_head, out);
    }
  }

  void run_head(Member& self) const {
    norm_rows(self, stage_.norm, batch_.sampled);
    self.meet();
    linear(self, worker_.counters[stage_.layers * (LINEARS + 1)], batch_.sampled, normed_, stage_.hidden, stage_.head,
           stage_.padded_vocab / (2 * LANES), [&](int each, int pair, Wide a, Wide b) {
             float* to = batch_.logits + static_cast<int64_t>(each) * stage_.padded_vocab + pair * 2 * LANES;
             store(to, a);
             store(to + LANES, b);
           });
  }

  Worker& worker_;
  const Stage& stage_;
  const Batch& batch_;
  Input *normed_, *queries_, *attended_, *inner_;
  float* raw_;
};

}  // namespace

// The threads and the scratch memory of one stage; see Cores. Null: there is no memory or no thread left.
extern "C" void* tandem_open(int32_t threads, int32_t cores, void* bytes, int32_t stages, int32_t own) {
  try {
    return new Worker(threads, Cores(threads, cores, static_cast<std::atomic<uint8_t>*>(bytes), stages, own));
  } catch (...) {
    return nullptr;
  }
}

extern "C" void tandem_close(void* worker) { delete static_cast<Worker*>(worker); }

// How many threads would compute a layer now.
extern "C" int32_t tandem_part(void* worker) { return static_cast<Worker*>(worker)->cores.part(); }

// One plan. 0: it ran; 1: there is not enough memory.
extern "C" int32_t tandem_run(void* worker, const Stage* stage, const Batch* batch) {
  try {
    Worker& own = *static_cast<Worker*>(worker);
    Run(own, *stage, *batch).work();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}
