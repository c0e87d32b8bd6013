/*: # What the chapters' programs share

The decoders of the chapters differ in one thing, the schedule: which launches make a token. So they have one `main`, in `chapter.c`, and a
chapter brings a `Chapter`. Those that launch something other than the final kernels also bring a `gpu_schedule` in place of the one in `gpu.cu`. :*/
#ifndef CHAPTER_H
#define CHAPTER_H
#include "tiles.h"

#ifdef __cplusplus
extern "C" {
#endif

//> chapter
typedef struct Chapter {
  const char *name;
  uint32_t launch; // tokens that the host asks for at once, at most
  SyncKind sync;   // of its plan
  bool cpu;        // threads, whatever the machine has
  // Of a schedule with several launches a token, otherwise NULL.
  uint32_t (*kernels)(void); // of the last token
  void (*trace)(bool on);    // whether each kernel writes down when it begins and ends
  // Of the last traced token: time in kernels, and between the first one's begin and the last one's end in none.
  int (*traced)(double *busy_us, double *idle_us, Error *e);
} Chapter;
extern const Chapter chapter;
extern bool chapter_graph; // --graph: the schedule's launches as a CUDA graph

double gpu_host_milliseconds(const Gpu *g); // in gpu.cu: the host's work for the last launch
//< chapter

//> stages
// The matrices that a token reads, stage by stage. out: [3 * layers] at most, or NULL to count them.
enum { STAGE_QKV, STAGE_WO, STAGE_GATE_UP, STAGE_DOWN, STAGE_LM_HEAD, STAGES };
extern const char *const stage_names[STAGES];
size_t stage_regions(const Model *m, int stage, Region *out);
// A machine's read rate over them: by `threads` CPU threads for so many seconds.
double model_read_gbs(const Model *m, uint32_t threads, double least_seconds);
//< stages

#ifdef __cplusplus
}
#endif
#endif
