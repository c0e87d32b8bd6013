/*: ## The same launches as a graph

Not a kernel is different. What changes is when the host says what is to be launched: once, and not before each token. :*/
#define OPERATIONS_AS_GRAPH
#include "chapters/03-kernel-per-operation.cu"

//> graph_schedule
extern "C" {
extern const Chapter chapter = {
    "ch04", 1, SYNC_BARRIER, false, schedule_kernels, schedule_trace, schedule_traced};
}
cudaError_t gpu_schedule(const Plan &plan, DType type, uint32_t shared, cudaStream_t stream,
                         const Params &p) {
  return run_schedule(plan, type, shared, stream, p, operation_floats(p), true);
}
//< graph_schedule
