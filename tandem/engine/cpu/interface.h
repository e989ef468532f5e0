// What Python hands over: plain structs, mirrored field by field in native.py.
#pragma once

#include "simd.h"

// One decoder layer. Matrices are packed (packing.cpp); null where the architecture has no such weights.
struct Layer {
  const float* attn_norm;
  const bf16* qkv;
  const float* qkv_bias;
  const float* q_norm;
  const float* k_norm;
  const bf16* attn_out;
  const float* ffn_norm;
  const bf16* gate_up;
  const bf16* down;
};

// What stays the same from run to run.
struct Stage {
  int32_t hidden, intermediate, heads, kv_heads, head_dim, padded_vocab;
  int32_t page_size;
  int32_t window;  // a token sees so many, itself included; 0: all
  float eps;
  int32_t layers;
  const Layer* layer;
  const bf16* embedding;  // [vocab, hidden], or null: hidden states come from the stage before
  const float* norm;      // or null: hidden states go to the next stage
  const bf16* head;
  const float* cos;  // [context, head_dim / 2]
  const float* sin;
  bf16* pages;  // [layers, num_pages, block]
  int64_t layer_items;
  int64_t block_items;
};

// One plan: `rows` runs of consecutive tokens, the i-th [first_token[i], first_token[i + 1]) of the plan's.
struct Batch {
  int32_t rows, tokens, sampled;
  const int32_t* first_token;
  const int32_t* start;       // [rows]: the position of its first token
  const int32_t* first_page;  // [rows]: where its page table begins in `pages`
  const int32_t* pages;
  const int32_t* ids;         // [tokens], where there is an embedding
  const int32_t* sampled_at;  // [sampled]: numbers of tokens
  float* hidden;              // [tokens, hidden]: taken in, and put out
  float* logits;              // [sampled, padded_vocab]
  void (*layer_ran)(int32_t); // called as soon as a layer's keys and values are in its pages
};
