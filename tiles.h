/*: # The vocabulary

Every file of the program includes this header and nothing else of ours. It holds the nouns: a
**model** is shapes and tensors, a **target** is what a machine can do, a **plan** is every **tile** of
one token with its **wave** and its **worker**. The rooms of the program pass these structs along and
may not look behind them:

    checkpoint → model.c → Model ┐
                   target → Target ┴→ plan.c → Plan → tiles_cpu.c → next token

Shapes are written as `[rows, columns]`, row-major, outermost first. Sizes are in elements unless the
name says bytes. :*/
#ifndef TILES_H
#define TILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" { // the kernels' host side is compiled as C++
#endif

#define TILES_VERSION "0.1"

/*: ## Errors

A function that can fail returns 0 or -1 and writes one line into the `Error` that the caller passed.
Libraries never print an error and never exit; `tiles.c` prints the line and exits with the code. The
line names the file, the key or tensor, and both numbers: the one found and the one expected. :*/
//> error
enum {
  EXIT_OK = 0,
  EXIT_FAIL = 1,         // the machine let us down: memory, disk, a lost worker
  EXIT_USAGE = 2,        // the command line
  EXIT_INPUT = 3,        // a file that we were given
  EXIT_PLAN = 4,         // a plan that was refused
  EXIT_NUMBER = 5,       // a non-finite logit
  EXIT_INTERRUPTED = 130 // Ctrl-C
};

typedef struct Error {
  int code;
  char text[640]; // one line, control characters replaced
} Error;

// Formats the line and returns -1, so that callers write `return fail(e, EXIT_INPUT, ...)`.
int fail(Error *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

// One line on stderr, for what a user should know and what does not stop the work.
void notice(const char *format, ...) __attribute__((format(printf, 1, 2)));
//< error

/*: ## Files

Weights are never read into memory: the file is mapped, and the page cache is the loader. :*/
//> mapping
typedef struct Mapping {
  const uint8_t *data; // NULL for an empty file
  size_t size;         // bytes
} Mapping;

int map_file(const char *path, Mapping *out,
             Error *e);      // EXIT_INPUT; refuses folders and LFS pointers
void unmap_file(Mapping *m); // safe on a zeroed Mapping
//< mapping

uint64_t hash64(const void *data, size_t bytes, uint64_t seed); // FNV-1a over 64-bit lanes
double seconds(void);                                           // monotonic clock

// Writes a file so that no reader ever sees half of it: a temporary name beside `path`, fsync, rename,
// fsync of the folder. On any failure the temporary is removed and `path` is untouched.
typedef struct AtomicFile {
  FILE *f;
  char *path, *temporary;
} AtomicFile;
int atomic_open(AtomicFile *a, const char *path, Error *e);
int atomic_write(AtomicFile *a, const void *data, size_t bytes, Error *e);
int atomic_commit(AtomicFile *a, Error *e);
void atomic_abort(AtomicFile *a); // safe after commit and on a zeroed struct

/*: ## Numbers

Weights stay in the two bytes that the checkpoint gave them; everything that is computed is FP32. :*/
//> dtype
typedef enum DType { DT_NONE, DT_F32, DT_BF16, DT_F16, DT_COUNT } DType;

static inline size_t dtype_size(DType t) { return t == DT_F32 ? 4 : 2; }
const char *dtype_name(DType t); // "F32", "BF16", "F16"

float bf16_to_f32(uint16_t h);
float f16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f); // round to nearest, ties to even; NaN stays NaN
uint16_t f32_to_f16(float f);  // the same; overflow becomes infinity
//< dtype

/*: ## The shape of a model

All that the planner needs to know: no names, no bytes. `llama`, `qwen2` and `qwen3` differ in three
switches, so the family is only a word for people. :*/
//> shape
typedef enum RopeKind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_FACTORS } RopeKind;

typedef struct Rope {
  RopeKind kind;
  double theta;
  double factor;        // linear, llama3
  double low, high;     // llama3: low_freq_factor, high_freq_factor
  double original;      // llama3: original_max_position_embeddings
  const float *factors; // GGUF's rope_freqs: [head_dim / 2] divisors, or NULL
} Rope;

typedef struct Shape {
  char name[48];   // "llama-3.2-1b", or the checkpoint's own name
  char family[16]; // "llama", "qwen2", "qwen3"
  int32_t vocab;   // rows of the embedding; no id at or above it exists
  int32_t hidden;  // width of the residual
  int32_t inter;   // rows of gate and up
  int32_t layers;
  int32_t heads;    // query heads
  int32_t kv_heads; // K/V heads; heads is a multiple of it
  int32_t head_dim; // even
  int32_t max_context;
  float rms_eps;
  Rope rope;
  DType dtype; // of the matrices, and of the K/V cache
  bool tied;   // lm_head is the embedding
  bool qkv_bias, o_bias, mlp_bias;
  bool qk_norm; // RMSNorm of every query and key head before RoPE
} Shape;

// Rows of the stacked Q, K and V projections.
static inline int32_t qkv_rows(const Shape *s) {
  return (s->heads + 2 * s->kv_heads) * s->head_dim;
}

const Shape *shape_find(const char *name);   // a known shape, or NULL
const char *shape_names(void);               // all known names, separated by spaces
uint64_t shape_weight_bytes(const Shape *s); // bytes of weights that one token must read
uint64_t shape_stored_bytes(const Shape *s); // bytes of weights in the checkpoint
uint64_t shape_kv_bytes(const Shape *s);     // bytes of K/V cache a position
int shape_check(const Shape *s, const char *file, Error *e); // every size possible and consistent
// head_dim / 2 inverse frequencies, scaling applied. out: [head_dim / 2]
void rope_frequencies(const Shape *s, float *out);
//< shape

/*: ## A model

A matrix is where its rows lie. `permuted_head` is GGUF's doing: files of architecture `llama` store
the rows of Q and K so that RoPE's pairs are neighbours. `matrix_row` undoes it, so that nothing after
`model.c` can tell which file a model came from. :*/
//> model
typedef struct Matrix {
  const uint8_t *data; // may be at any alignment
  DType dtype;
  int32_t rows, columns;
  int32_t permuted_head; // 0, or the head size within which rows are interleaved
} Matrix;

static inline size_t matrix_stride(const Matrix *m) {
  return (size_t)m->columns * dtype_size(m->dtype);
}
// Row `r` in the order of a Hugging Face checkpoint.
static inline const uint8_t *matrix_row(const Matrix *m, int32_t r) {
  if (m->permuted_head) {
    int32_t i = r % m->permuted_head, half = m->permuted_head / 2;
    r += (i < half ? 2 * i : 2 * (i - half) + 1) - i;
  }
  return m->data + (size_t)r * matrix_stride(m);
}

typedef struct Layer {
  const float *attn_norm, *ffn_norm;     // [hidden]
  Matrix q, k, v;                        // [heads*head_dim, hidden], [kv_heads*head_dim, hidden] x2
  const float *q_bias, *k_bias, *v_bias; // [rows] or NULL
  const float *q_norm, *k_norm;          // [head_dim] or NULL
  Matrix o;                              // [hidden, heads*head_dim]
  const float *o_bias;                   // [hidden] or NULL
  Matrix gate, up;                       // [inter, hidden]
  Matrix down;                           // [hidden, inter]
  const float *gate_bias, *up_bias, *down_bias;
} Layer;

typedef struct Model {
  Shape shape;
  Matrix embedding;        // [vocab, hidden]
  Matrix lm_head;          // [vocab, hidden]; equals embedding where tied
  const float *final_norm; // [hidden]
  Layer *layer;            // [layers]
  int32_t *stop_ids;       // any of these ends a request
  int32_t stop_count;
  bool down_sliced;     // a package whose down projections are cut to the plan's FFN tiles
  uint64_t source_hash; // of the shapes and of the weights' names, sizes and file times
  void *store;          // what the pointers point into; owned
} Model;                // layer and stop_ids come from malloc; model_close frees all

// `bytes` of zeros, aligned to 64, that live as long as the model; NULL when memory is out.
void *model_keep(Model *m, size_t bytes);
//< model

/*: A **source** is what the user pointed at: a Hugging Face folder, a GGUF file, or a package made by
`tiles plan -o`. It answers two questions, the weights and the texts (config, tokenizer), so that
`model.c` and `tokenizer.c` need not know which of the three it is. :*/
//> source
typedef enum SourceKind { SOURCE_FOLDER, SOURCE_GGUF, SOURCE_PACKAGE } SourceKind;

typedef struct Gguf Gguf;
typedef struct Package Package;

typedef struct Source {
  SourceKind kind;
  char *path;       // as the user wrote it
  Gguf *gguf;       // GGUF, or a package made from one (its header only)
  Package *package; // package
  Mapping map;      // GGUF: the file; models made from it point into it
} Source;

int source_open(const char *path, Source *out, Error *e); // EXIT_INPUT
void source_close(Source *s);

// A text file of the checkpoint by its name ("config.json"). Returns 1 and a Mapping to be given to
// source_text_free, 0 when there is none, -1 on error.
int source_text(const Source *s, const char *name, Mapping *out, Error *e);
void source_text_free(const Source *s, Mapping *m);

// A model of a GGUF file or a package points into the source, which must outlive it.
int model_open(const Source *s, Model *out, Error *e); // EXIT_INPUT
void model_close(Model *m);

// JSON text to a tree (cJSON_Delete it), or NULL: nothing but white space may follow the value.
struct cJSON;
struct cJSON *json_parse(const char *file, const void *text, size_t bytes, Error *e);
// config.json to a shape and its stop ids, appended to *stop_ids, an stb_ds array. Only the weights can
// tell dtype, name, and, where the config is silent (0), kv_heads.
int config_parse(const char *file, const void *text, size_t bytes, Shape *out, int32_t **stop_ids,
                 Error *e);
//< source

/*: ### Tensors by name

`safetensors.c` and `gguf.c` both answer with a list of tensors; `model.c` looks names up in it. :*/
//> tensors
typedef struct Tensor {
  char *name;
  char type[16];       // as the file spells it: "BF16", "Q4_1"
  DType dtype;         // DT_NONE where we cannot compute with it as it lies
  int rank;            // 0 to 4
  int64_t dim[4];      // outermost first
  const uint8_t *data; // into a mapping; any alignment
  uint64_t bytes;
  const char *file; // for messages
} Tensor;

typedef struct TensorSet {
  Tensor *list; // stb_ds array
  struct TensorEntry {
    char *key;
    int32_t value; // index into list
  } * by_name;     // stb_ds string map
  Mapping *maps;   // stb_ds array; owned
  char **files;    // stb_ds array; owned
} TensorSet;

const Tensor *tensor_find(const TensorSet *t, const char *name); // or NULL
void tensors_close(TensorSet *t);

// Parses one safetensors file that lies at data[0, size) and appends its tensors.
int safetensors_parse(const char *file, const uint8_t *data, size_t size, TensorSet *out, Error *e);
// model.safetensors, or every shard of model.safetensors.index.json.
int safetensors_open(const char *folder, TensorSet *out, Error *e);

typedef enum GgufType {
  GGUF_U8,
  GGUF_I8,
  GGUF_U16,
  GGUF_I16,
  GGUF_U32,
  GGUF_I32,
  GGUF_F32,
  GGUF_BOOL,
  GGUF_STRING,
  GGUF_ARRAY,
  GGUF_U64,
  GGUF_I64,
  GGUF_F64
} GgufType;

typedef struct GgufValue {
  GgufType type;
  GgufType element; // of an array
  uint64_t count;   // of an array; bytes of a string
  const uint8_t *p; // little-endian bytes: the scalar, the string, the first element
} GgufValue;

// Parses a GGUF file at data[0, size), which must outlive the result. With header_only the tensors'
// bytes need not be there.
int gguf_parse(const char *file, const uint8_t *data, size_t size, bool header_only, Gguf **out,
               Error *e);
void gguf_close(Gguf *g);
const GgufValue *gguf_get(const Gguf *g, const char *key);    // or NULL
bool gguf_int(const Gguf *g, const char *key, int64_t *out);  // any integer type or bool
bool gguf_float(const Gguf *g, const char *key, double *out); // any number
bool gguf_string(const Gguf *g, const char *key, const char **p, size_t *bytes);
// Element i of an array of strings. Walks from the start: iterate with gguf_next instead.
typedef struct GgufStrings {
  const uint8_t *p;
  uint64_t left;
} GgufStrings;
bool gguf_strings(const Gguf *g, const char *key, GgufStrings *it);
bool gguf_next(GgufStrings *it, const char **p, size_t *bytes);
const uint8_t *gguf_header(const Gguf *g, size_t *bytes); // what a package keeps
const TensorSet *gguf_tensors(const Gguf *g);
// Widens a Q8_0, Q4_0 or Q4_1 tensor to FP16, round to nearest even. out: [elements]
int gguf_widen(const Tensor *t, uint16_t *out, Error *e);
// Config: the shape and stop ids that the metadata give. Used by model.c.
int gguf_shape(const Gguf *g, const char *file, Shape *out, Error *e);
//< tensors

/*: ## Text

`pieces.c` knows the two machines behind every tokenizer: a **pattern** cuts a text into pieces, and the
**vocabulary** joins the characters of a piece into tokens. `vocab.c` reads a checkpoint's files and
writes down what they say as a list of steps; `tokenizer.c` runs the steps, and goes back from ids to
text. :*/
//> vocab
enum { VOCAB_IDS = 1 << 21 }; // no id at or above it

typedef struct Vocab {
  char *texts; // stb_ds array: the tokens' texts, end to end
  struct VocabText {
    uint32_t at, bytes;
  } * by_id;       // stb_ds array [size]; at = UINT32_MAX: no token has this id
  uint32_t *slots; // [slot_count] id + 1 by the hash of its text, 0: free
  uint32_t slot_count, slots_used;
  struct VocabMerge {
    int32_t left, right, id; // id 0 with left and right 0 and rank UINT32_MAX: free
    uint32_t rank;
  } * merges; // [merge_count] by the hash of the pair
  uint32_t merge_count, merges_used;
  uint32_t
      *score_rank; // stb_ds array [size], UINT32_MAX: never joined; NULL: merges say what joins
  int32_t byte_id[256]; // the tokens <0x00> to <0xFF>, or -1
  int32_t unknown;      // or -1
  bool byte_fallback, fuse_unknown, ignore_merges;
} Vocab;

void vocab_free(Vocab *v); // safe on a zeroed Vocab
int32_t vocab_size(const Vocab *v);
const char *vocab_text(const Vocab *v, int32_t id, size_t *bytes);  // NULL: no such token
int32_t vocab_find(const Vocab *v, const char *text, size_t bytes); // the id, or -1
// Both overwrite what has the same key; -1: out of memory.
int vocab_put(Vocab *v, int32_t id, const char *text, size_t bytes); // id < VOCAB_IDS, and free
int vocab_put_merge(Vocab *v, int32_t left, int32_t right, uint32_t rank, int32_t id);
void vocab_put_scores(Vocab *v, const float *score); // [size], NaN: never joined
void vocab_finish(Vocab *v);                         // derives byte_id
// Appends the ids of one piece, valid UTF-8, to *ids, an stb_ds array. EXIT_FAIL, EXIT_INPUT.
int vocab_encode(const Vocab *v, const char *piece, size_t bytes, int32_t **ids, Error *e);

typedef struct Pattern Pattern;
typedef struct PatternScan PatternScan; // working memory of matching, one a thread

// A regular expression as tokenizer.json has it (Oniguruma's syntax), or a literal text.
int pattern_compile(const char *file, const char *text, size_t bytes, bool literal, Pattern **out,
                    Error *e); // EXIT_INPUT
void pattern_free(Pattern *p);
PatternScan *pattern_scan(void); // NULL: out of memory
void pattern_scan_free(PatternScan *s);
// The first match at or after `from`, never empty: 1 and its place, 0 when there is none, -1 on error.
int pattern_next(const Pattern *p, PatternScan *s, const char *text, size_t bytes, size_t from,
                 size_t *start, size_t *end, Error *e);
size_t utf8_valid(const char *text, size_t bytes); // bytes before the first that is wrong
void text_append(char **out, const char *text, size_t bytes); // to an stb_ds array
//< vocab

//> tokenizer_struct
// What becomes of the places that a pattern matches.
typedef enum TextCut {
  CUT_ISOLATED,
  CUT_REMOVED,
  CUT_TO_PREVIOUS,
  CUT_TO_NEXT,
  CUT_CONTIGUOUS
} TextCut;

typedef enum TextStepKind {
  STEP_NFC,     // canonical composition
  STEP_PREPEND, // text in front of a piece that is not empty
  STEP_REPLACE, // every match becomes text
  STEP_SPLIT,   // cut at the matches
  STEP_BYTES,   // every byte becomes a letter of the byte alphabet
} TextStepKind;

typedef struct TextStep {
  TextStepKind kind;
  Pattern *pattern;
  char *text; // malloc
  size_t bytes;
  TextCut cut;
  bool invert;     // cut between the matches instead
  bool unless;     // prepend: only where the piece does not begin with it
  bool only_first; // prepend: only at the beginning of the whole text
} TextStep;

// A token that is found as it is, before anything is cut.
typedef struct AddedToken {
  char *text; // what is looked for; malloc
  size_t bytes;
  int32_t id;
  uint32_t order; // among equals the first wins
  bool special, single_word, lstrip, rstrip;
} AddedToken;

typedef struct AddedTokens {
  AddedToken *list;    // stb_ds array by first byte, the longest first
  uint32_t first[257]; // where each first byte begins
} AddedTokens;

enum { PRINT_TOKEN, PRINT_AS_IT_IS, PRINT_NOTHING }; // ordinary, added, special
typedef enum Decoding { DECODE_BYTES, DECODE_SPACES } Decoding;
typedef enum ChatKind { CHAT_NONE, CHAT_ML, CHAT_LLAMA3 } ChatKind;

typedef struct Tokenizer {
  char *file; // for messages
  Vocab vocab;
  TextStep *normal, *cuts; // stb_ds arrays
  AddedTokens raw, normed; // looked for before and after the normal form
  uint8_t *printed;        // stb_ds array [size] of PRINT_*
  int32_t *front;          // stb_ds array: what goes before a text, BOS
  Decoding decoding;
  bool drop_first_space;
  int32_t limit; // ids at or above it do not exist in the model; 0: no limit
  ChatKind chat;
  bool chat_front;   // ChatML with a BOS
  char *chat_system; // the system message where the prompt has none; malloc, or NULL
} Tokenizer;
//< tokenizer_struct

//> text
int tokenizer_open(const Source *s, const Shape *shape, Tokenizer **out, Error *e);
// The same from texts in memory: tokenizer.json, tokenizer_config.json, chat_template.jinja, the last
// two with data NULL where there is none. shape may be NULL: then no id is too large.
int tokenizer_parse(const char *file, const Mapping text[3], const Shape *shape, Tokenizer **out,
                    Error *e);
int tokenizer_parse_gguf(const char *file, const Gguf *g, const Shape *shape, Tokenizer **out,
                         Error *e);
void tokenizer_close(Tokenizer *t);
// Replaces *text, an stb_ds array, by its normal form.
int tokenizer_normalize(const Tokenizer *t, char **text, Error *e);
// Appends the ids of a UTF-8 text to *ids, an stb_ds array. `special`: add BOS as the checkpoint's
// rules say, and recognise special tokens in the text. Invalid UTF-8 is an error.
int tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, bool special,
                     int32_t **ids, Error *e);
int32_t tokenizer_size(const Tokenizer *t); // ids with a text, at most

// Streaming: bytes come out only as whole characters. A sequence that turns out not to be one comes
// out as U+FFFD. Control tokens and ids without a text print nothing.
typedef struct Detokenizer {
  const Tokenizer *tokenizer;
  uint8_t held[8]; // the beginning of a character
  int32_t held_count;
  bool started; // SentencePiece drops the space before the first word
} Detokenizer;
// Both append to *out, an stb_ds array.
void detokenize(Detokenizer *d, int32_t id, char **out);
void detokenize_flush(Detokenizer *d, char **out);

// Wraps a prompt as the instruct model was taught, by the kind of its vocabulary (ChatML, Llama 3).
// Appends to *ids. EXIT_INPUT where the vocabulary has neither.
int chat_encode(const Tokenizer *t, const char *prompt, size_t bytes, int32_t **ids, Error *e);
//< text

/*: ## A target

What the planner may count on. Written by `tiles probe` for this machine, or read from the folder `targets`
(`key<TAB>value` lines). Zero means unknown, and the planner then assumes the cost away. :*/
//> target
typedef enum FfnKind { FFN_AUTO, FFN_FUSED, FFN_SPLIT } FfnKind;

typedef enum AttentionKind { ATTENTION_AUTO, ATTENTION_TWO_PASS, ATTENTION_ONE_PASS } AttentionKind;

// How the results of a wave reach the next: everybody waits at a grid barrier, or the values themselves say that they are there.
typedef enum SyncKind { SYNC_AUTO, SYNC_BARRIER, SYNC_DATA } SyncKind;

typedef struct Target {
  char name[48];
  char kind[8];           // "cpu" or "cuda"
  uint32_t workers;       // blocks that are resident together, or CPU threads
  uint32_t threads;       // threads a block; 1 on a CPU
  uint32_t registers;     // a thread, of the compiled worker
  uint32_t shared_bytes;  // shared memory a block may have
  uint32_t fused_context; // two passes: one tile a head up to here; one pass: positions a chunk
  double read_gbs;        // streaming read of all workers, GB/s
  double worker_gbs;      // streaming read of one worker alone, GB/s
  double kv_worker_gbs;   // K/V read of one worker in an attention tile, GB/s
  double barrier_us;      // one barrier with nobody late
  double handoff_us;      // from a value's store by one worker to its arrival at all others
  double ramp_us;         // from a barrier to the full stream and back
  double attention_us;    // an attention pass over an empty cache
  FfnKind ffn;            // what the planner shall build
  AttentionKind attention;
  SyncKind sync;
  char fingerprint[65]; // of the compiled worker; empty where any will do
} Target;

int target_read(const char *name_or_file, Target *out, Error *e); // EXIT_INPUT
int target_write(const Target *t, FILE *f);                       // 0 or -1
int target_probe(uint32_t workers, Target *out, Error *e); // this machine's CPU; 0: all it may use
uint32_t cpu_count(void); // from the affinity mask and the cgroup's quota, at least 1

typedef struct Region {
  const uint8_t *data;
  size_t bytes;
} Region;
// GB/s at which `threads` threads together read the regions front to back, each thread its own part of
// every region, over and over for at least so many seconds. 0 when it could not be measured.
double read_rate(const Region *regions, size_t count, uint32_t threads, double least_seconds);
//< target

/*: ## A plan

One token is a fixed list of tiles. A tile is an opcode over a range of output rows, on one worker, in
one wave. Waves end at a barrier, so a tile may read what any tile of an earlier wave wrote and nothing
else. `row0`, `row1` and `part` mean:

| opcode | rows `[row0, row1)` of | `part` | reads | writes |
|---|---|---|---|---|
| embed | hidden | 0 | the token id, the embedding's row | residual |
| qkv | stacked Q, K, V | 0 | residual (all) | q, k and v rows |
| scores | K/V heads | context chunk | q and k rows of its heads (last chunk: v rows too), K cache | K and V row into the cache (last chunk); scores |
| values | K/V heads | context chunk | scores of its heads (all chunks), V cache | attention partial `part` |
| attend | K/V heads | context chunk | q and k rows of its heads (last chunk: v rows too), K and V cache | K and V row into the cache (last chunk); attention partial `part` |
| wo | hidden | 0 | attention partials (all), residual rows | residual rows |
| ffn | intermediate | partial | residual (all) | FFN partial `part`, all of hidden |
| ffn_reduce | hidden | 0 | FFN partials (all) of its rows, residual rows | residual rows |
| gate_up | intermediate | 0 | residual (all) | activation rows |
| down | hidden | 0 | activation (all), residual rows | residual rows |
| final_norm | hidden | 0 | residual (all) | normed rows |
| lm_head | vocab | candidate slot | normed (all) | candidate slot `part`, logit rows |
| merge | attention output | 0 | attention partials (all chunks) of its heads | attention output rows |

Attention comes in two kinds, and a plan uses one of them throughout. In **two passes**, its form is chosen by the context and by nothing
else. Above `fused_context` a scores tile and a values tile handle each chunk: of n positions, chunk c of C covers `[n*c/C, n*(c+1)/C)`,
rounded down. Up to `fused_context` the scores tile of chunk 0 does all of attention for its heads and writes attention partial 0;
the other scores tiles and all values tiles have nothing to do, and the barrier between the two waves is skipped. The last chunk holds the
newest position, so its scores tile writes the new K and V row (chunk 0 in the fused form; a CPU's qkv tile writes V rows itself, which no plan
may count on). With a single chunk there is only the fused form, and no values wave.

In **one pass**, an attend tile does its chunk's scores, exponentials and weighted values at once, relative to its chunk's own
largest score, and Wo brings the partials to one scale when it adds them. So one wave and one barrier fewer. Of n positions
min(chunks, ceil(n / fused_context)) chunks are in use: that many attend tiles a K/V head have work, the last of them writes the new K
and V row, and Wo reads that many partials. All barriers are ALWAYS. :*/
//> plan
typedef enum Op {
  OP_EMBED,
  OP_QKV,
  OP_SCORES,
  OP_VALUES,
  OP_ATTEND,
  OP_WO,
  OP_FFN,
  OP_FFN_REDUCE,
  OP_GATE_UP,
  OP_DOWN,
  OP_FINAL_NORM,
  OP_LM_HEAD,
  OP_MERGE,
  OP_COUNT
} Op;
const char *op_name(int op); // "embed", …; "?" outside

typedef struct Tile {
  uint16_t op;
  uint16_t layer; // 0 for embed, final_norm and lm_head
  uint32_t wave;
  uint32_t worker;
  uint32_t row0, row1; // half open, never empty
  uint32_t part;
} Tile;

// After a wave. IF_SPLIT: skipped up to fused_context. DATA: none; the values of the wave say that they are there.
enum { BARRIER_ALWAYS = 0, BARRIER_IF_SPLIT = 1, BARRIER_DATA = 2 };

typedef struct Plan {
  Shape shape; // rope.factors is not kept
  Target target;
  uint32_t workers;
  uint32_t wave_count;
  uint32_t tile_count;
  uint32_t chunks;                 // context chunks of attention
  uint32_t ffn_parts;              // FFN partials; 0 with gate_up and down
  uint32_t slots;                  // lm_head candidates
  uint32_t fused_context;          // as the target's; UINT32_MAX with one chunk
  bool one_pass;                   // attend tiles instead of scores and values
  SyncKind sync;                   // SYNC_BARRIER or SYNC_DATA
  uint32_t ring_slots, slot_bytes; // of a tape; 0 with barriers
  uint32_t *barrier;               // [wave_count] kind of the barrier after the wave
  Tile *tile;                      // [tile_count] by worker, then wave, then the order of execution
  uint32_t *first;                 // [workers + 1] first tile of each worker; derived from tile
} Plan;

int plan_make(const Shape *s, const Target *t, Plan *out, Error *e); // EXIT_PLAN; validated
void plan_free(Plan *p);
// Chunks of attention that have work when n positions are attended to, the newest included.
uint32_t plan_chunks_in_use(const Plan *p, uint32_t n);
int plan_index(Plan *p, Error *e); // (re)derives first[]; checks the order and the workers only
// Every rule, with the tile and the rule named. The one gate before a plan is run.
int plan_validate(const Plan *p, Error *e); // EXIT_PLAN
// Its first step, on the header alone: shape, target and counts. What passes cannot overflow anything.
int plan_sizes(const Plan *p, Error *e); // EXIT_PLAN
//< plan

/*: ### Tapes

With `sync` DATA there is no barrier. A value in a hand-off buffer says itself whether it has been written, and a worker reads its
weights as one **tape** through a ring of `ring_slots` slots of shared memory, each of `slot_bytes`, ahead of the tiles that need them. What
such a plan looks like:

- Attention in one pass, the FFN split, no embed and no final_norm: every worker takes the embedding's row and norms the last residual for itself.
- A layer's waves are qkv, attend, merge (with several chunks), wo, gate_up, down; the token's last is lm_head. Every `barrier` is DATA.
- Every worker has exactly one tile in each wave of qkv, wo, gate_up, down and lm_head. So whoever has read a whole residual knows that
  every worker has finished every earlier wave: that is what makes it safe to write a hand-off buffer again.
- Rows `[row0, row1)` of a merge tile are elements of `[heads, head_dim]`, `row0` and `row1` multiples of 4. With one chunk in use the attend tile writes the attention output and merge
  tiles have nothing to do.
- wo and down do not read the residual rows that they add to. A worker keeps them from reading the whole residual: in qkv (of layer 0: the
  embedding's row) and in gate_up.
- A worker hands on rows of the residual and of the attention output in several copies, of which each worker reads one; that changes nothing in what follows.
- A worker resets what it wrote: q, k and v rows, attention partials and output, and the residual after wo at the beginning of the same layer's down
  tile, once it has all of the activation; the activation and the residual after down, of which there are two copies by turns of the layer (running on from
  token to token), at the beginning of the next layer's down tile; candidates, two copies by turns of the token, at the beginning of the next
  lm_head tile. The rows that a worker wrote are those of its tile *of that layer*: its rows move on from layer to layer.
- An lm_head tile reads the whole residual of the last layer also where no logits are wanted, and then does nothing else.
- The tape of a worker is its tiles in their order, each cut into **pieces** by `tape_cut`: of TAPE_SUMS rows at a time, block of columns by block of columns, rows from
  row0 on, gate and up by turns (a piece of gate rows, the same rows of up); and of an attend tile keys and values by turns. Piece i goes through slot
  i % ring_slots. :*/
//> tiles_tape
// How the rows of a matrix pass through a ring: a piece is some rows of a block of columns, and each of TAPE_WARPS warps has an eighth of the block's columns.
enum {
  TAPE_WARPS = 8,
  TAPE_COLUMNS = 2048, // of a block, at most
  TAPE_BLOCKS = 8,     // of a row, at most
  TAPE_SUMS = 128,     // rows that are finished together, at most
  TAPE_GROUP = 8,      // query heads of a K/V head, at most
  TAPE_HEADS = 4,      // of them a warp takes together
  TAPE_PARTS_BYTES =
      16 * (8 * 3 * 36 + 36), // of shared memory, for a vector as the tensor cores want it
  TAPE_HEAD = 128             // a head's size, at most
};
typedef struct TapeCut {
  uint32_t columns, blocks; // of a block, a multiple of 256; how many make a row
  uint32_t rows;            // of a piece, a multiple of 8; 0: such rows do not fit
} TapeCut;
TapeCut tape_cut(uint32_t columns, uint32_t slot_bytes); // two-byte columns
// Bytes of shared memory that a worker with so many tiles needs beside the ring.
uint64_t tape_reserve(const Shape *s, uint32_t workers, uint32_t tiles);
//< tiles_tape

/*: ### The price of a plan :*/
//> plan_prices
enum { PLAN_MAX_WORKERS = 1 << 16, PLAN_MAX_CHUNKS = 64, PLAN_MAX_TILES = 1 << 22 };

typedef struct WaveCost {
  uint64_t bytes;        // weights and K/V of the wave
  uint64_t worker_bytes; // of its busiest worker
  uint32_t tiles;
  uint32_t op, layer; // of its first tile
  double us;          // predicted, barrier included
} WaveCost;

typedef struct PlanCost {
  uint32_t opcodes; // distinct ones
  uint64_t weight_bytes, kv_bytes;
  double spread_percent; // bytes a worker in a weight wave: the largest over the smallest, less 1
  double floor_ms;       // (weights + K/V) / read_gbs
  double predicted_ms;
} PlanCost;
// At `context` positions, the newest included. wave: [wave_count], or NULL.
void plan_cost(const Plan *p, uint32_t context, PlanCost *out, WaveCost *wave);
uint64_t tile_bytes(const Plan *p, const Tile *t,
                    uint32_t context); // weights and K/V that it reads
void plan_explain(const Plan *p, uint32_t context, FILE *f);
void plan_print_tsv(const Plan *p, uint32_t context, FILE *f);
//< plan_prices

/*: ## A package

Plan, target and packed weights in one file, so that planning and packing happen once. Without a
checkpoint it holds only plan and target. The down projections of a fused FFN are cut into the tiles'
columns, so that every tile's bytes are contiguous; all other matrices are stored in the order of the
model, un-permuted. :*/
//> package
// model and source may be NULL: a plan for a shape alone.
int package_write(const char *path, const Plan *p, const Model *m, const Source *s, Error *e);
int package_open(const char *path, Package **out,
                 Error *e); // validates everything; EXIT_INPUT, EXIT_PLAN
int package_parse(const char *file, const uint8_t *data, size_t size, Package **out, Error *e);
void package_close(Package *p);
bool package_magic(const uint8_t *data, size_t size);
const Plan *package_plan(const Package *p);
bool package_has_weights(const Package *p);
int package_model(const Package *p, Model *out, Error *e);
// 1 found, 0 absent; not owned. A package made from a GGUF file keeps its header as "header.gguf".
int package_text(const Package *p, const char *name, Mapping *out);
uint64_t package_source_hash(const Package *p); // Model.source_hash of what it was made from, or 0
// Reads every weight and compares its hash. Opening does not: it must not read gigabytes.
int package_verify(const Package *p, Error *e); // EXIT_INPUT
//< package

/*: ## Arithmetic on a CPU

The only three loops that a CPU spends time in, each for every dtype that a row may have, and for
every instruction set that we know. A row may lie at any alignment. :*/
//> kernels
typedef struct Kernels {
  const char *isa; // "avx512", "avx2", "c"
  // The sum of w[i] * x[i] over n elements, accumulated in FP32 in an order that depends on n alone.
  float (*dot[DT_COUNT])(const uint8_t *w, const float *x, int32_t n);
  // y[i] += a * w[i]
  void (*axpy[DT_COUNT])(float a, const uint8_t *w, float *y, int32_t n);
  // s[i] = exp(s[i] - max); returns the sum.
  float (*exps)(float *s, float max, int32_t n);
  // Fetches every cache line and returns something that depends on all of them.
  uint64_t (*read)(const uint8_t *p, size_t bytes);
} Kernels;

const Kernels *
kernels_find(const char *isa); // NULL: the best that this CPU runs; or NULL if it can't
//< kernels

/*: ## The workers :*/
//> workers
typedef struct Cpu Cpu;

// Buffers, K/V cache for `context` positions, and min(plan->workers, threads) threads; 0 means
// cpu_count(). Model and plan must outlive it. EXIT_FAIL, EXIT_PLAN.
int cpu_open(const Model *m, const Plan *p, uint32_t context, uint32_t threads, Cpu **out,
             Error *e);
void cpu_close(Cpu *c);
// One token at one position, positions in order from 0. With want_logits, lm_head runs too: *next is the
// largest logit's id, the lowest among ties. EXIT_NUMBER on a non-finite logit.
int cpu_step(Cpu *c, int32_t token, uint32_t position, bool want_logits, int32_t *next, Error *e);
const float *cpu_logits(const Cpu *c); // [vocab] of the last step that wanted them
// For benchmarks: fills the first `positions` of the K/V cache with seeded numbers, so that a late position
// can be timed without decoding all that come before it.
void cpu_seed_cache(Cpu *c, uint32_t positions);
uint32_t cpu_threads(const Cpu *c);
//< workers

/*: ## The GPU

The same plan on blocks instead of threads. In a program built without CUDA all of these say so. A GPU's target
names the card and the fingerprint of the compiled kernel: a plan for another of either is refused. :*/
//> gpu
typedef struct Gpu Gpu;
enum { GPU_LAUNCH = 64 }; // tokens of one launch, at most

bool gpu_built(void);                 // the kernels are in this program
int gpu_count(void);                  // usable cards
const char *gpu_why_none(void);       // when there is none: one line
const char *kernel_fingerprint(void); // of the machine code
// A card as a target: what the driver says and what the compiled kernel needs; rates stay 0. workers 0: all.
int gpu_target(int device, uint32_t workers, Target *out, Error *e);
// The same with rates measured. sweep: also print the read rate against the number of workers, as TSV.
int gpu_probe(int device, uint32_t workers, FILE *sweep, Target *out, Error *e);
// Uploads the weights. Memory for `context` positions is asked for first. EXIT_PLAN, EXIT_FAIL.
int gpu_open(const Model *m, const Plan *p, uint32_t context, int device, Gpu **out, Error *e);
void gpu_close(Gpu *g);
// One launch: `steps` tokens from `position` on. The first n are given; what follows is decoded greedily, with
// logits from step n - 1 on, or with `logits` false not at all (a prompt's middle: steps == n). out:
// [GPU_LAUNCH]; *made ids were written, and *stopped says that a stop id came next. EXIT_NUMBER, EXIT_FAIL.
int gpu_decode(Gpu *g, const int32_t *given, uint32_t n, uint32_t position, uint32_t steps,
               bool logits, int32_t *out, uint32_t *made, bool *stopped, Error *e);
double gpu_milliseconds(const Gpu *g);        // of the last launch, by the card's own clock
int gpu_logits(Gpu *g, float *out, Error *e); // [vocab] of the last step that wanted them
int gpu_seed_cache(Gpu *g, uint32_t positions, Error *e); // as cpu_seed_cache
double gpu_read_rate(Gpu *g);                             // GB/s over the model's own weights
// When each worker began and ended each wave of the next decode's step `step`, in nanoseconds. Filled by
// gpu_decode. ns: [workers, waves + 1, 2]; the last entry's first is the end of the token's last barrier.
int gpu_trace(Gpu *g, uint32_t step, Error *e);
int gpu_trace_read(Gpu *g, uint64_t *ns, Error *e);
// For tests: how long a worker waits before it gives up, and a worker that never comes (UINT32_MAX: none).
void gpu_plant_failure(Gpu *g, double patience_seconds, uint32_t lost_worker);
//< gpu

/*: ## One decoder, whoever plays the plan :*/
//> decoder_face
typedef struct Decoder {
  const Model *model;
  const Plan *plan;
  Cpu *cpu; // one of the two
  Gpu *gpu;
  float *logits;       // [vocab] host's copy
  double milliseconds; // of the last launch
} Decoder;

// device: a GPU's number, or -1 for the CPU. Also after a failure, decoder_close.
int decoder_open(const Model *m, const Plan *p, uint32_t context, int device, Decoder *out,
                 Error *e);
void decoder_close(Decoder *d);
uint32_t decoder_launch(const Decoder *d); // tokens that are best decoded together
// As gpu_decode.
int decoder_decode(Decoder *d, const int32_t *given, uint32_t n, uint32_t position, uint32_t steps,
                   bool logits, int32_t *out, uint32_t *made, bool *stopped, Error *e);
const float *decoder_logits(Decoder *d, Error *e); // [vocab], or NULL
int decoder_seed_cache(Decoder *d, uint32_t positions, Error *e);
uint32_t decoder_threads(const Decoder *d);
//< decoder_face

/*: ## Measuring :*/
//> bench
typedef struct DecodeTimes {
  long tokens;        // printed
  long steps;         // timed
  double seconds;     // of the timed steps
  double context_sum; // positions that the timed steps attended to
} DecodeTimes;
// Adds `steps` steps that took so long together, the first of which attended to `context` positions.
void decode_time(DecodeTimes *t, double took_seconds, uint32_t steps, uint32_t context);
// One line: tokens, ms/token and the share of the floor that the machine's read rate gives right now.
void decode_report(const DecodeTimes *t, Decoder *d, FILE *f);

// Virtual machines share their memory with neighbours, and its speed has states. A result therefore keeps
// the slices of decoding apart by the read rate that was measured just before and just after each.
typedef struct BenchState {
  uint32_t slices;
  double read_gbs, floor_ms, ms, least_ms, most_ms, share_percent; // medians; ms over the slices
} BenchState;
typedef struct BenchResult {
  uint32_t context, threads, tokens, dropped; // dropped: slices whose two read rates disagree
  uint32_t states;                            // 1, or 2 with the slower first
  BenchState state[2];
} BenchResult;
// `runs` times `tokens` tokens whose first sees `context` positions. Stops early when *stop is set.
int bench_decode(Decoder *d, uint32_t context, uint32_t tokens, uint32_t runs,
                 const volatile int *stop, BenchResult *out, Error *e);
void bench_print(const BenchResult *r, bool header, bool tsv, FILE *f);

// The loss account of one traced token as TSV, and its trace in Chrome's format. ns: [workers, waves + 1, 2]
void trace_account(const Plan *p, uint32_t context, double read_gbs, const uint64_t *ns, FILE *f);
void trace_chrome(const Plan *p, uint32_t context, const uint64_t *ns, FILE *f);
//< bench

/*: ## Seeded checkpoints

Random weights in any known shape, so that every size can be run and timed without a download. :*/
//> synth
int synth_write(const Shape *s, const char *folder, uint64_t seed, Error *e);
//< synth

#ifdef __cplusplus
}
#endif

#endif
