/*: ## Launching

What the decoders of many launches have in common: a launch that is counted, a place in memory for what changes from token to token, a graph that
replays the launches, and stamps that tell when kernels ran. :*/
#ifndef LAUNCHES_H
#define LAUNCHES_H
#include "tiles_kernel.cu"
#include "chapters/chapter.h"

#include <algorithm>
#include <vector>

/*: A captured launch has the same arguments each time. So the position, like the token, is read from the card's memory, where the host puts it before
the launches. `kernel` counts the launches of a token. :*/
//> launches_token
struct Place { // of a launch, in its token
  const uint32_t *position;
  uint32_t layer, kernel;
};

static struct Schedule {
  const void *owner; // the weights on the card that the memory below is for
  uint32_t *host_position, *position;
  float *buffers;             // the chapter's own
  uint64_t *stamps;           // [STAMPED, stamp_blocks, 2] nanoseconds
  uint32_t stamp_blocks;      // of a kernel, at most
  uint32_t kernels;           // of the last token
  std::vector<void *> kernel; // those that may have all of the shared memory
  bool tracing;
  cudaGraphExec_t graph[2][2]; // [logits wanted][tracing]
} schedule;
enum { STAMPED = 4096 };

struct Token { // what is launched for one
  const Params &p;
  DType type;
  uint32_t shared;
  cudaStream_t stream;
  bool logits;
};
//< launches_token

/*: A launch that is not cooperative. Every kernel gets the same amount of shared memory, so that no SM has to divide its memory anew between two of
them; more than a small part of it has to be asked for, once a kernel. :*/
//> launches_launch
template <class... P>
static cudaError_t launch_kernel(const Token &t, void (*kernel)(P...), uint32_t blocks,
                                 std::common_type_t<P>... arguments) {
  void *list[] = {(void *)&arguments..., nullptr};
  std::vector<void *> &known = schedule.kernel;
  if (std::find(known.begin(), known.end(), (void *)kernel) == known.end()) {
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)t.shared);
    if (code != cudaSuccess) return code;
    known.push_back((void *)kernel);
  }
  if (schedule.kernels++ == STAMPED) return cudaErrorInvalidValue;
#ifdef __CUDACC__
  return cudaLaunchKernel((const void *)kernel, dim3(blocks), dim3(BLOCK), list, t.shared,
                          t.stream);
#else
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(BLOCK), list, t.shared, t.stream);
#endif
}
#define LAUNCH(call)                                                                               \
  do {                                                                                             \
    cudaError_t code_ = (call);                                                                    \
    if (code_ != cudaSuccess) return code_;                                                        \
  } while (0)
//< launches_launch

/*: ### When kernels ran

Each block writes the time at which it begins and ends. A kernel lasts from the first begin to the last end, and what lies between two kernels is time in which
the card does nothing. :*/
//> launches_stamp
struct Stamp {
  uint64_t *at; // NULL: not now
  __device__ __forceinline__ Stamp(const Params &p, const Place &here, uint32_t blocks)
      : at(p.trace ? p.trace + ((uint64_t)here.kernel * blocks + blockIdx.x) * 2 : nullptr) {
    if (at && threadIdx.x == 0) at[0] = global_nanoseconds();
  }
  __device__ __forceinline__ ~Stamp() {
    if (!at) return;
    __syncthreads();
    if (threadIdx.x == 0) at[1] = global_nanoseconds();
  }
};

extern "C" {
static uint32_t schedule_kernels(void) { return schedule.kernels; }
static void schedule_trace(bool on) { schedule.tracing = on; }
static int schedule_traced(double *busy_us, double *idle_us, Error *e) {
  const size_t row = (size_t)schedule.stamp_blocks * 2;
  std::vector<uint64_t> ns(schedule.kernels * row);
  cudaError_t code =
      cudaMemcpy(ns.data(), schedule.stamps, ns.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost);
  if (code != cudaSuccess) return fail(e, EXIT_FAIL, "stamps: %s", cudaGetErrorString(code));
  uint64_t busy = 0, begin = 0, before = 0;
  for (uint32_t k = 0; k < schedule.kernels; k++) {
    uint64_t first = UINT64_MAX, last = 0;
    for (size_t b = 0; b < row; b += 2)
      if (ns[k * row + b]) { // a block that ran
        first = std::min(first, ns[k * row + b]);
        last = std::max(last, ns[k * row + b + 1]);
      }
    if (last < first) return fail(e, EXIT_FAIL, "stamps: kernel %u did not run", k);
    // The card's clock has steps: a kernel may seem to begin just before the last one's end.
    first = std::max(first, before);
    last = std::max(last, first);
    if (k == 0) begin = first;
    busy += last - first;
    before = last;
  }
  *busy_us = (double)busy / 1e3;
  *idle_us = (double)(before - begin - busy) / 1e3;
  return 0;
}
}
//< launches_stamp

/*: ### Plain, or as a graph

Plain, the host makes every launch of every token. With a graph it makes them once while the stream only writes them down; from then on a token is one call, and the card
knows all launches beforehand. Before that the token is launched plainly, which loads the kernels: the middle of a capture is no place for that. Doing one token twice changes
nothing, because it begins with its embedding. :*/
//> launches_graph
// What one token launches: the chapter's.
static cudaError_t launch_token(const Token &t, const Plan &plan);

static cudaError_t capture(const Token &t, const Plan &plan, cudaGraphExec_t *out) {
  cudaGraph_t graph;
  LAUNCH(launch_token(t, plan));
  schedule.kernels = 0;
  LAUNCH(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeGlobal));
  cudaError_t launched = launch_token(t, plan), ended = cudaStreamEndCapture(t.stream, &graph);
  LAUNCH(launched);
  LAUNCH(ended);
  cudaError_t made = cudaGraphInstantiateWithFlags(out, graph, 0);
  cudaGraphDestroy(graph);
  return made;
}

static cudaError_t run_schedule(const Plan &plan, DType type, uint32_t shared, cudaStream_t stream,
                                const Params &request, uint64_t own_floats, bool as_graph) {
  Schedule &s = schedule;
  if (request.steps != 1) return cudaErrorInvalidValue;
  if (s.owner != request.weights) {
    if (s.owner) return cudaErrorInvalidValue; // one model a program
    s.stamp_blocks = std::max(plan.workers, request.kv_heads * request.chunks);
    const size_t stamps = (size_t)STAMPED * s.stamp_blocks * 2 * sizeof(uint64_t);
    LAUNCH(cudaMallocHost((void **)&s.host_position, sizeof *s.host_position));
    LAUNCH(cudaMalloc((void **)&s.position, sizeof *s.position));
    LAUNCH(cudaMalloc((void **)&s.stamps, stamps));
    LAUNCH(cudaMemset(s.stamps, 0, stamps));
    LAUNCH(cudaMalloc((void **)&s.buffers, (own_floats + 1) * sizeof(float)));
    LAUNCH(cudaMemset(s.buffers, 0, (own_floats + 1) * sizeof(float)));
    s.owner = request.weights;
  }
  *s.host_position = request.position;
  LAUNCH(cudaMemcpyAsync(s.position, s.host_position, sizeof *s.position, cudaMemcpyHostToDevice,
                         stream));
  Params p = request;
  p.trace = s.tracing ? s.stamps : nullptr;
  const Token t = {p, type, shared, stream, request.first_logits == 0};
  s.kernels = 0;
  if (!as_graph) return launch_token(t, plan);
  static uint32_t kernels[2][2];
  cudaGraphExec_t &graph = s.graph[t.logits][s.tracing];
  if (!graph) {
    LAUNCH(capture(t, plan, &graph));
    kernels[t.logits][s.tracing] = s.kernels;
  }
  s.kernels = kernels[t.logits][s.tracing];
  return cudaGraphLaunch(graph, stream);
}
//< launches_graph

/*: ### The last kernel

It combines the candidates of all blocks and leaves the token where the host reads it, as the end of the loop in `tiles_kernel` does. :*/
//> launches_choose
static __global__ void __launch_bounds__(BLOCK, 1)
    choose_kernel(const __grid_constant__ Params p, const Place here, uint32_t blocks) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Stamp stamp(p, here, blocks);
  const int32_t token = combine_slots(p, block_shared(p, bytes).candidate);
  bool stop = token < 0;
  for (uint32_t i = 0; i < p.stops; i++) stop = stop || token == p.stop[i];
  if (threadIdx.x == 0) {
    if (!stop) p.output[0] = token;
    p.status->tokens = !stop;
    p.status->stopped = stop && token >= 0;
    p.status->step = 0;
    if (token < 0) p.status->code = STATUS_NONFINITE;
  }
}
//< launches_choose
#endif
