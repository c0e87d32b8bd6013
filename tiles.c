/*: # The command

`tiles` is thin. It reads the command line, opens what the user pointed at, asks the planner for a plan
and the workers for tokens, and prints. There is no arithmetic here, and nothing that another program
could not do with the same calls.

Standard output carries the result and nothing else; everything for people goes to standard error. :*/
#include "tiles.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

/*: ## Options

All commands share one set of options, and each says which of them it takes: an option that means nothing to a
command is refused, not ignored. :*/
//> options
typedef struct Options {
  const char *model; // the one argument without a dash
  const char *prompt, *file, *ids, *target, *output, *device, *contexts, *ffn, *sync;
  long n, context, workers, seed, runs, smem;
  bool chat, explain, tsv, decode, no_special, all, sweep, help;
} Options;

typedef struct Command {
  const char *name;
  const char *takes; // letters of the options
  const char *usage;
  int (*run)(const Options *o, Error *e);
  bool argument; // needs MODEL
} Command;

static const struct option long_options[] = {{"ids", 1, 0, 'i'},
                                             {"chat", 0, 0, 'c'},
                                             {"ctx", 1, 0, 'x'},
                                             {"workers", 1, 0, 'w'},
                                             {"device", 1, 0, 'd'},
                                             {"target", 1, 0, 't'},
                                             {"context", 1, 0, 'x'},
                                             {"explain", 0, 0, 'e'},
                                             {"tsv", 0, 0, 'v'},
                                             {"decode", 0, 0, 'D'},
                                             {"no-special", 0, 0, 'S'},
                                             {"seed", 1, 0, 's'},
                                             {"runs", 1, 0, 'r'},
                                             {"ffn", 1, 0, 'F'},
                                             {"all", 0, 0, 'a'},
                                             {"sweep", 0, 0, 'W'},
                                             {"help", 0, 0, 'h'},
                                             {"prompt", 1, 0, 'p'},
                                             {"file", 1, 0, 'f'},
                                             {"output", 1, 0, 'o'},
                                             {"sync", 1, 0, 'Y'},
                                             {"smem", 1, 0, 'M'},
                                             {0, 0, 0, 0}};

static int number(const char *what, const char *text, long least, long most, long *out, Error *e) {
  char *end;
  errno = 0;
  long v = strtol(text, &end, 10);
  if (end == text || *end) return fail(e, EXIT_USAGE, "%s: \"%s\" is not a number", what, text);
  if (errno || v < least || v > most)
    return fail(e, EXIT_USAGE, "%s: %s is outside %ld to %ld", what, text, least, most);
  *out = v;
  return 0;
}

static int parse_options(const Command *command, int argc, char **argv, Options *o, Error *e) {
  *o = (Options){.n = 256, .seed = 1};
  opterr = 0;
  optind = 1;
  int c, at = 1;
  while ((c = getopt_long(argc, argv, ":p:f:n:o:h", long_options, NULL)) != -1) {
    const char *word = argv[at < argc ? at : argc - 1];
    at = optind;
    if (c == 'h') {
      o->help = true;
      return 0;
    }
    if (c == ':')
      return fail(e, EXIT_USAGE, "%s: %s needs a value", command->name, argv[optind - 1]);
    if (c == '?' || !strchr(command->takes, c))
      return fail(e, EXIT_USAGE, "%s: unknown option %s; see tiles %s --help", command->name,
                  c == '?' ? argv[optind - 1] : word, command->name);
    int bad = 0;
    switch (c) {
    case 'p': o->prompt = optarg; break;
    case 'f': o->file = optarg; break;
    case 'i': o->ids = optarg; break;
    case 'n': bad = number("-n", optarg, 0, INT32_MAX, &o->n, e); break;
    case 'o': o->output = optarg; break;
    case 'c': o->chat = true; break;
    case 'x':
      o->contexts = optarg;
      if (strchr(command->takes, 'X')) break; // a list, read by the command
      bad = number("--ctx", optarg, 1, INT32_MAX, &o->context, e);
      break;
    case 'w': bad = number("--workers", optarg, 1, 65536, &o->workers, e); break;
    case 'd': o->device = optarg; break;
    case 't': o->target = optarg; break;
    case 'e': o->explain = true; break;
    case 'v': o->tsv = true; break;
    case 'D': o->decode = true; break;
    case 'S': o->no_special = true; break;
    case 's': bad = number("--seed", optarg, 0, INT32_MAX, &o->seed, e); break;
    case 'r': bad = number("--runs", optarg, 1, 10000, &o->runs, e); break;
    case 'F': o->ffn = optarg; break;
    case 'Y': o->sync = optarg; break;
    case 'M': bad = number("--smem", optarg, 1, INT32_MAX, &o->smem, e); break;
    case 'a': o->all = true; break;
    case 'W': o->sweep = true; break;
    default: break;
    }
    if (bad) return bad;
  }
  if (optind < argc) o->model = argv[optind++];
  if (strcmp(command->name, "synth") == 0 && optind < argc) o->output = argv[optind++];
  if (optind < argc)
    return fail(e, EXIT_USAGE, "%s: what is \"%s\"? One argument is enough", command->name,
                argv[optind]);
  if (command->argument && !o->model)
    return fail(e, EXIT_USAGE, "%s: nothing given to work on; see tiles %s --help", command->name,
                command->name);
  if (o->device && strcmp(o->device, "auto") != 0 && strcmp(o->device, "cpu") != 0 &&
      strcmp(o->device, "cuda") != 0 && strncmp(o->device, "cuda:", 5) != 0)
    return fail(e, EXIT_USAGE, "--device: \"%s\" is none of auto, cpu and cuda:N", o->device);
  return 0;
}
//< options

/*: ## Ctrl-C and closed pipes

The handler only raises a flag; the loop looks at it between tokens. A second Ctrl-C finds the default
action again and ends the program at once. A reader that went away is no error of ours: `tiles run … | head`
ends quietly. :*/
//> signals
static volatile int interrupted; // int: sig_atomic_t on every machine that we know

static void on_interrupt(int signal_number) {
  (void)signal_number;
  interrupted = 1;
}

static void catch_signals(void) {
  struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
  sigemptyset(&a.sa_mask);
  sigaction(SIGINT, &a, NULL);
  signal(SIGPIPE, SIG_IGN);
}

// 0, or -1 when nobody reads standard output any more (e->code is EXIT_OK then) or it failed.
static int print(const void *data, size_t bytes, Error *e) {
  if ((bytes && fwrite(data, 1, bytes, stdout) != bytes) || fflush(stdout) != 0) {
    if (errno == EPIPE) return fail(e, EXIT_OK, "closed");
    return fail(e, EXIT_FAIL, "standard output: %s", strerror(errno));
  }
  return 0;
}

static void progress(const char *what, long done, long all) {
  if (!isatty(STDERR_FILENO)) return;
  fprintf(stderr, "\r%s %ld of %ld%s", what, done, all, done == all ? "\r\033[K" : "");
  fflush(stderr);
}
//< signals

/*: ## A session

What `run`, `bench` and `logits` have in common: a checkpoint opened, planned and handed to workers. :*/
//> session
typedef struct Session {
  Source source;
  Model model;
  Plan own; // made here, unless the package brought its plan
  const Plan *plan;
  Tokenizer *tokenizer;
  Decoder decoder;
} Session;

static void session_close(Session *s) {
  decoder_close(&s->decoder);
  tokenizer_close(s->tokenizer);
  plan_free(&s->own);
  model_close(&s->model);
  source_close(&s->source);
}

static int session_open(Session *s, const Options *o, bool text, Error *e) {
  *s = (Session){0};
  if (source_open(o->model, &s->source, e) != 0 || model_open(&s->source, &s->model, e) != 0)
    return -1;
  return text ? tokenizer_open(&s->source, &s->model.shape, &s->tokenizer, e) : 0;
}

// The device that --device asks for: a GPU's number, or -1 for the CPU.
static int choose_device(const Options *o, bool quiet, int *device, Error *e) {
  const char *d = o->device ? o->device : "auto";
  *device = -1;
  if (strcmp(d, "cpu") == 0) return 0;
  if (strcmp(d, "auto") == 0) {
    if (gpu_count() > 0) *device = 0;
    // Asked for by name, the answer gets a reason; otherwise the last line says that there was no GPU.
    else if (!quiet && o->device && gpu_built()) notice("on the CPU: %s", gpu_why_none());
    return 0;
  }
  long n = 0;
  if (strcmp(d, "cuda") != 0 && number("--device", d + strlen("cuda:"), 0, 1023, &n, e) != 0)
    return -1;
  if (n >= gpu_count())
    return fail(e, EXIT_USAGE, "--device %s: %d usable GPUs%s%s", d, gpu_count(),
                gpu_count() ? "" : ": ", gpu_count() ? "" : gpu_why_none());
  *device = (int)n;
  return 0;
}

// This machine with unmeasured rates: all that a plan needs in order to run here.
static int here(const Options *o, int device, Target *t, Error *e) {
  if (o->target) {
    if (target_read(o->target, t, e) != 0) return -1;
    if (o->workers) t->workers = (uint32_t)o->workers;
    return 0;
  }
  if (device >= 0) return gpu_target(device, (uint32_t)o->workers, t, e);
  *t = (Target){.name = "this-cpu", .kind = "cpu", .threads = 1, .fused_context = 256};
  t->workers = o->workers ? (uint32_t)o->workers : cpu_count();
  return 0;
}

// Shared memory of a block, held to what a smaller card would have.
static int limit_shared(const Options *o, Target *t, Error *e) {
  if (!o->smem) return 0;
  if (strcmp(t->kind, "cuda") != 0)
    return fail(e, EXIT_USAGE, "--smem: target %s is of kind %s; it has no shared memory", t->name,
                t->kind);
  if (t->shared_bytes && (uint32_t)o->smem > t->shared_bytes)
    return fail(e, EXIT_USAGE, "--smem: %ld bytes of shared memory; %s gives a block %u", o->smem,
                t->name, t->shared_bytes);
  t->shared_bytes = (uint32_t)o->smem;
  return 0;
}

// The target of the command line: a file's, or this machine's, and what the options change in it.
static int plan_target(const Options *o, int device, Target *t, Error *e) {
  if (here(o, device, t, e) != 0) return -1;
  if (o->ffn && strcmp(o->ffn, "fused") == 0) t->ffn = FFN_FUSED;
  else if (o->ffn && strcmp(o->ffn, "split") == 0) t->ffn = FFN_SPLIT;
  else if (o->ffn) return fail(e, EXIT_USAGE, "--ffn: \"%s\" is neither fused nor split", o->ffn);
  if (o->sync && strcmp(o->sync, "barrier") == 0) t->sync = SYNC_BARRIER;
  else if (o->sync && strcmp(o->sync, "data") == 0) t->sync = SYNC_DATA;
  else if (o->sync)
    return fail(e, EXIT_USAGE, "--sync: \"%s\" is neither barrier nor data", o->sync);
  return limit_shared(o, t, e);
}

static int session_start(Session *s, const Options *o, uint32_t context, Error *e) {
  int device;
  if (s->source.kind == SOURCE_PACKAGE) {
    s->plan = package_plan(s->source.package);
    if (o->workers && (uint32_t)o->workers != s->plan->workers)
      return fail(e, EXIT_PLAN, "%s: its plan has %u workers, --workers asks for %ld", o->model,
                  s->plan->workers, o->workers);
    if (o->smem && (uint32_t)o->smem != s->plan->target.shared_bytes)
      return fail(e, EXIT_PLAN, "%s: its plan is for %u bytes of shared memory, --smem says %ld",
                  o->model, s->plan->target.shared_bytes, o->smem);
    if (choose_device(o, false, &device, e) != 0) return -1;
    if (!o->device && strcmp(s->plan->target.kind, "cpu") == 0) device = -1;
  } else {
    Target t;
    Shape shape = s->model.shape;
    if (choose_device(o, false, &device, e) != 0 || plan_target(o, device, &t, e) != 0) return -1;
    if (device >= 0 && shape.dtype == DT_F32) shape.dtype = DT_BF16;
    if (plan_make(&shape, &t, &s->own, e) != 0) return -1;
    s->plan = &s->own;
  }
  return decoder_open(&s->model, s->plan, context, device, &s->decoder, e);
}
//< session

/*: ## Input

Ids are separated by commas or white space. Text comes from the command line or a file; `-f -` is
standard input. :*/
//> input
static int parse_ids(const char *what, const char *text, int32_t vocab, int32_t **ids, Error *e) {
  for (const char *p = text;;) {
    p += strspn(p, ", \t\r\n");
    if (!*p) return 0;
    char *end;
    errno = 0;
    long v = strtol(p, &end, 10);
    if (end == p || (*end && !strchr(", \t\r\n", *end)))
      return fail(e, EXIT_USAGE, "%s: \"%.20s\" is not an id", what, p);
    if (errno || v < 0 || v >= vocab)
      return fail(e, EXIT_INPUT, "%s: id %.20s: the vocabulary has %d", what, p, vocab);
    arrput(*ids, (int32_t)v);
    p = end;
  }
}

// Appends a whole file to *text, an stb_ds array.
static int read_all(const char *path, char **text, Error *e) {
  FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
  if (!f) return fail(e, EXIT_INPUT, "%s: %s", path, strerror(errno));
  char part[65536];
  size_t n;
  while ((n = fread(part, 1, sizeof part, f)) > 0) memcpy(arraddnptr(*text, n), part, n);
  int why = ferror(f) ? errno : 0;
  if (f != stdin) fclose(f);
  return why ? fail(e, EXIT_INPUT, "%s: %s", path, strerror(why)) : 0;
}

static int read_text(const Options *o, char **text, Error *e) {
  if (o->file) return read_all(o->file, text, e);
  size_t n = strlen(o->prompt);
  if (n) memcpy(arraddnptr(*text, n), o->prompt, n);
  return 0;
}
//< input

/*: ## run

The prompt goes through the same loop as every other token, one position at a time; only its last
position needs logits. The context is what prompt and answer need, unless `--ctx` says otherwise: a model
that could remember 131,072 positions would ask for four gigabytes of cache to say hello. :*/
//> run_input
static int run_context(const Options *o, const Shape *shape, size_t prompt, uint32_t *context,
                       Error *e) {
  size_t most = (size_t)shape->max_context, wanted = prompt + (size_t)o->n;
  if (o->context) {
    wanted = (size_t)o->context;
    if (wanted > most)
      return fail(e, EXIT_USAGE, "--ctx: %zu positions, the model knows %zu", wanted, most);
  }
  if (wanted > most) wanted = most;
  if (prompt > wanted)
    return fail(e, EXIT_INPUT, "the prompt has %zu tokens, the context %zu", prompt, wanted);
  *context = wanted ? (uint32_t)wanted : 1;
  return 0;
}

static int run_prompt(Session *s, const Options *o, int32_t **ids, Error *e) {
  char *text = NULL;
  int bad;
  if (o->ids) bad = parse_ids("--ids", o->ids, s->model.shape.vocab, ids, e);
  else if ((bad = read_text(o, &text, e)) == 0)
    bad = o->chat ? chat_encode(s->tokenizer, text, arrlenu(text), ids, e)
                  : tokenizer_encode(s->tokenizer, text, arrlenu(text), true, ids, e);
  arrfree(text);
  if (!bad && arrlen(*ids) == 0) bad = fail(e, EXIT_INPUT, "the prompt has no tokens");
  return bad;
}

static int emit(const Options *o, Detokenizer *d, const int32_t *ids, uint32_t n, bool first,
                Error *e) {
  char *out = NULL;
  for (uint32_t i = 0; i < n; i++) {
    if (!o->ids) {
      detokenize(d, ids[i], &out);
      continue;
    }
    char word[16];
    int k = snprintf(word, sizeof word, first && i == 0 ? "%d" : " %d", ids[i]);
    memcpy(arraddnptr(out, k), word, (size_t)k);
  }
  int bad = print(out, arrlenu(out), e);
  arrfree(out);
  return bad;
}

//< run_input

/*: ### What the host does while tokens are made

Almost nothing. It hands over a launch's tokens and gets up to 64 back; in between it turns ids to text and prints them. So whatever the host costs is divided by the
tokens of a launch. A GPU's first launches are short, one token, then two, then four, so that the first words do not wait for sixty-four. :*/
//> run_loop
// All of the prompt but its last token, which asks for the first logits.
static int run_through_prompt(Session *s, const int32_t *prompt, uint32_t n, Error *e) {
  int32_t none[GPU_LAUNCH];
  uint32_t launch = decoder_launch(&s->decoder), made;
  bool stopped;
  for (uint32_t at = 0; at + 1 < n && !interrupted;) {
    uint32_t steps = n - 1 - at < launch ? n - 1 - at : launch;
    if (decoder_decode(&s->decoder, prompt + at, steps, at, steps, false, none, &made, &stopped,
                       e) != 0)
      return -1;
    at += steps;
    progress("prompt", at + 1, n);
  }
  return 0;
}

static int run_loop(Session *s, const Options *o, const int32_t *prompt, uint32_t context,
                    DecodeTimes *times, Error *e) {
  Detokenizer d = {.tokenizer = s->tokenizer};
  uint32_t n = (uint32_t)arrlen(prompt), room = context - n, most = decoder_launch(&s->decoder);
  uint32_t wanted = o->n < (long)room ? (uint32_t)o->n : room, total = 0;
  int32_t ids[GPU_LAUNCH], last = prompt[n - 1];
  bool stopped = false;
  int bad = run_through_prompt(s, prompt, n, e);
  for (uint32_t launch = 1; !bad && !interrupted && !stopped && total < wanted; launch *= 2) {
    uint32_t steps = wanted - total, made, at = n - 1 + total;
    if (launch > most) launch = most;
    if (steps > launch) steps = launch;
    bad = decoder_decode(&s->decoder, &last, 1, at, steps, true, ids, &made, &stopped, e);
    // The first token's time holds the first touch of every page, so it is not counted.
    if (!bad && total) decode_time(times, s->decoder.milliseconds / 1e3, made + stopped, at + 1);
    if (made && emit(o, &d, ids, made, total == 0, e) != 0) return -1; // a closed pipe: say nothing
    total += made;
    times->tokens = total;
    if (made) last = ids[made - 1];
  }
  if (!bad && !interrupted && !stopped && total == room && (long)total < o->n)
    notice("context full: %u of %u positions", n + total, context);
  Error ignored;
  char *rest = NULL;
  if (!o->ids) detokenize_flush(&d, &rest);
  if (total) arrput(rest, '\n');
  int closed = print(rest, arrlenu(rest), bad ? &ignored : e);
  arrfree(rest);
  if (bad || closed) return bad ? bad : closed;
  return interrupted ? fail(e, EXIT_INTERRUPTED, "interrupted after %u tokens", total) : 0;
}

//< run_loop

//> run
static int command_run(const Options *o, Error *e) {
  int given = !!o->prompt + !!o->file + !!o->ids;
  if (given != 1)
    return fail(e, EXIT_USAGE, "run: give one of -p TEXT, -f FILE and --ids LIST; %d given", given);
  if (o->chat && o->ids) return fail(e, EXIT_USAGE, "run: --chat needs text, not --ids");
  Session s;
  DecodeTimes times = {0};
  int32_t *prompt = NULL;
  uint32_t context = 0;
  int bad = session_open(&s, o, !o->ids, e);
  if (!bad) bad = run_prompt(&s, o, &prompt, e);
  if (!bad) bad = run_context(o, &s.model.shape, arrlenu(prompt), &context, e);
  if (!bad && o->n > 0) {
    catch_signals();
    bad = session_start(&s, o, context, e);
    if (!bad) bad = run_loop(&s, o, prompt, context, &times, e);
    if ((s.decoder.cpu || s.decoder.gpu) && (!bad || e->code == EXIT_INTERRUPTED))
      decode_report(&times, &s.decoder, stderr);
  }
  arrfree(prompt);
  session_close(&s);
  return bad;
}
//< run

/*: ## logits

For comparing with others: the logits of the last position, or of all, as 32-bit floats in this machine's byte
order, one row of the vocabulary's size after the other. :*/
//> repeat
// One hash over the logits of every position, and over what a launch of as many tokens decodes from the first id.
static int hash_run(Session *s, const int32_t *ids, uint32_t n, uint64_t *hash, Error *e) {
  size_t bytes = (size_t)s->model.shape.vocab * sizeof(float);
  int32_t out[GPU_LAUNCH];
  uint32_t made, launch = n < GPU_LAUNCH ? n : GPU_LAUNCH;
  bool stopped;
  *hash = n;
  for (uint32_t i = 0; i < n; i++) {
    if (decoder_decode(&s->decoder, &ids[i], 1, i, 1, true, out, &made, &stopped, e) != 0)
      return -1;
    const float *row = decoder_logits(&s->decoder, e);
    if (!row) return -1;
    *hash = hash64(row, bytes, *hash);
  }
  if (decoder_launch(&s->decoder) < launch) return 0;
  if (decoder_decode(&s->decoder, ids, 1, 0, launch, true, out, &made, &stopped, e) != 0) return -1;
  const float *row = decoder_logits(&s->decoder, e);
  if (!row) return -1;
  *hash = hash64(row, bytes, hash64(out, made * sizeof *out, *hash));
  return 0;
}

// The same work `runs` times over must give the same bits.
static int repeat(Session *s, const int32_t *ids, uint32_t n, long runs, Error *e) {
  uint64_t first = 0, hash;
  for (long r = 0; r < runs && !interrupted; r++) {
    progress("run", r, runs);
    if (hash_run(s, ids, n, &hash, e) != 0) return -1;
    if (r == 0) first = hash;
    if (hash != first)
      return fail(e, EXIT_FAIL, "run %ld: logits %016llx, the first run's %016llx", r + 1,
                  (unsigned long long)hash, (unsigned long long)first);
  }
  progress("run", runs, runs);
  char line[96];
  int length = snprintf(line, sizeof line, "%ld runs of %u tokens: one hash, %016llx\n", runs, n,
                        (unsigned long long)first);
  return print(line, (size_t)length, e);
}
//< repeat

//> logits
static int command_logits(const Options *o, Error *e) {
  if (!o->ids) return fail(e, EXIT_USAGE, "logits: --ids LIST is missing");
  if (!o->output && !o->runs && isatty(STDOUT_FILENO))
    return fail(e, EXIT_USAGE, "logits: these are bytes, not text; give -o FILE");
  Session s;
  int32_t *ids = NULL;
  AtomicFile file = {0};
  int bad = session_open(&s, o, false, e);
  if (!bad) bad = parse_ids("--ids", o->ids, s.model.shape.vocab, &ids, e);
  size_t n = arrlenu(ids), most = bad ? 0 : (size_t)s.model.shape.max_context;
  if (!bad && n == 0) bad = fail(e, EXIT_INPUT, "--ids: no ids");
  if (!bad && n > most)
    bad = fail(e, EXIT_INPUT, "--ids: %zu ids, the model knows %zu positions", n, most);
  if (!bad) bad = session_start(&s, o, (uint32_t)n, e);
  if (!bad && o->runs) bad = repeat(&s, ids, (uint32_t)n, o->runs, e);
  else if (!bad && o->output) bad = atomic_open(&file, o->output, e);
  for (size_t i = 0; i < n && !bad && !o->runs; i++) {
    bool wanted = o->all || i + 1 == n;
    int32_t next;
    uint32_t made;
    bool stopped;
    bad = decoder_decode(&s.decoder, &ids[i], 1, (uint32_t)i, 1, wanted, &next, &made, &stopped, e);
    if (bad || !wanted) continue;
    const float *row = decoder_logits(&s.decoder, e);
    size_t bytes = (size_t)s.model.shape.vocab * sizeof(float);
    bad = !row ? -1 : o->output ? atomic_write(&file, row, bytes, e) : print(row, bytes, e);
  }
  if (!bad && file.f) bad = atomic_commit(&file, e);
  atomic_abort(&file);
  arrfree(ids);
  session_close(&s);
  return bad;
}
//< logits

/*: ## plan, check, probe

A plan needs a shape and a target, and weights only when a package is to be written. :*/
//> plan_command
static int command_plan(const Options *o, Error *e) {
  const Shape *known = shape_find(o->model);
  uint32_t context = o->context ? (uint32_t)o->context : 1;
  Session s = {0};
  Target t;
  int device, bad = choose_device(o, true, &device, e);
  if (!bad) bad = plan_target(o, device, &t, e);
  if (!bad && !known) bad = session_open(&s, o, false, e);
  if (!bad && s.source.kind == SOURCE_PACKAGE)
    bad = fail(e, EXIT_INPUT, "%s: already a package; tiles check looks into it", o->model);
  const Shape *shape = known ? known : &s.model.shape;
  if (!bad && context > (uint32_t)shape->max_context)
    bad = fail(e, EXIT_USAGE, "--context: %u positions, the model knows %d", context,
               shape->max_context);
  if (!bad) bad = plan_make(shape, &t, &s.own, e);
  if (!bad && o->output)
    bad = package_write(o->output, &s.own, known ? NULL : &s.model, known ? NULL : &s.source, e);
  if (!bad && o->tsv) plan_print_tsv(&s.own, context, stdout);
  else if (!bad) plan_explain(&s.own, context, stdout);
  if (!bad) bad = print(NULL, 0, e);
  session_close(&s);
  return bad;
}

static int command_check(const Options *o, Error *e) {
  Package *p = NULL;
  if (package_open(o->model, &p, e) != 0) return -1;
  int bad = package_verify(p, e);
  if (!bad) {
    const Plan *plan = package_plan(p);
    printf("valid: %u tiles in %u waves on %u workers, %s for target %s, %s\n", plan->tile_count,
           plan->wave_count, plan->workers, plan->shape.name, plan->target.name,
           package_has_weights(p) ? "weights intact" : "no weights");
    bad = print(NULL, 0, e);
  }
  package_close(p);
  return bad;
}

static int command_probe(const Options *o, Error *e) {
  Target t;
  int device;
  if (o->sweep && (o->output || o->smem))
    return fail(e, EXIT_USAGE, "probe: --sweep prints its own table; no -o and no --smem");
  if (choose_device(o, true, &device, e) != 0) return -1;
  if (device < 0 && (o->sweep || o->smem))
    return fail(e, EXIT_USAGE, "probe: %s is for a GPU", o->sweep ? "--sweep" : "--smem");
  if (device >= 0 ? gpu_probe(device, (uint32_t)o->workers, o->sweep ? stdout : NULL, &t, e) != 0
                  : target_probe((uint32_t)o->workers, &t, e) != 0)
    return -1;
  if (limit_shared(o, &t, e) != 0) return -1;
  if (o->sweep) return print(NULL, 0, e);
  if (!o->output) {
    if (target_write(&t, stdout) != 0 || print(NULL, 0, e) != 0)
      return fail(e, EXIT_FAIL, "standard output: %s", strerror(errno));
    return 0;
  }
  AtomicFile f;
  if (atomic_open(&f, o->output, e) != 0) return -1;
  int bad = target_write(&t, f.f) ? fail(e, EXIT_FAIL, "%s: %s", o->output, strerror(errno)) : 0;
  if (!bad) bad = atomic_commit(&f, e);
  atomic_abort(&f);
  return bad;
}
//< plan_command

//> synth_command
static int command_synth(const Options *o, Error *e) {
  const Shape *s = shape_find(o->model);
  if (!s) return fail(e, EXIT_USAGE, "synth: unknown shape %s; known: %s", o->model, shape_names());
  if (!o->output) return fail(e, EXIT_USAGE, "synth: give a folder to write to");
  return synth_write(s, o->output, (uint64_t)o->seed, e);
}
//< synth_command

/*: ## tokenize

Text in, ids out, or the other way round: a filter, and a way to ask what a model sees. :*/
//> tokenize_command
static int command_tokenize(const Options *o, Error *e) {
  if (o->prompt && o->file) return fail(e, EXIT_USAGE, "tokenize: -p or -f, not both");
  Session s;
  char *text = NULL, *out = NULL;
  int32_t *ids = NULL;
  Options input = *o;
  if (!o->prompt && !o->file) input.file = "-";
  int bad = session_open(&s, o, true, e);
  if (!bad) bad = read_text(&input, &text, e);
  if (!bad && o->decode) {
    arrput(text, 0);
    bad = parse_ids("ids", text, s.model.shape.vocab, &ids, e);
    Detokenizer d = {.tokenizer = s.tokenizer};
    for (ptrdiff_t i = 0; !bad && i < arrlen(ids); i++) detokenize(&d, ids[i], &out);
    if (!bad) detokenize_flush(&d, &out);
  } else if (!bad) {
    bad = tokenizer_encode(s.tokenizer, text, arrlenu(text), !o->no_special, &ids, e);
    for (ptrdiff_t i = 0; !bad && i < arrlen(ids); i++) {
      char word[16];
      int n = snprintf(word, sizeof word, i ? " %d" : "%d", ids[i]);
      memcpy(arraddnptr(out, n), word, (size_t)n);
    }
    if (!bad) arrput(out, '\n');
  }
  if (!bad) bad = print(out, arrlenu(out), e);
  arrfree(text);
  arrfree(out);
  arrfree(ids);
  session_close(&s);
  return bad;
}
//< tokenize_command

//> bench_command
static int command_bench(const Options *o, Error *e) {
  Session s;
  int32_t *contexts = NULL;
  int bad = session_open(&s, o, false, e);
  if (!bad) bad = parse_ids("--ctx", o->contexts ? o->contexts : "1", INT32_MAX, &contexts, e);
  uint32_t most = 0, tokens = o->n == 256 ? 64 : (uint32_t)o->n;
  for (ptrdiff_t i = 0; i < arrlen(contexts); i++)
    if ((uint32_t)contexts[i] > most) most = (uint32_t)contexts[i];
  if (!bad && (!most || !tokens)) bad = fail(e, EXIT_USAGE, "bench: nothing to measure");
  if (!bad && most + (uint64_t)tokens > (uint64_t)s.model.shape.max_context + 1)
    bad = fail(e, EXIT_USAGE, "--ctx: %u positions and %u tokens, the model knows %d", most, tokens,
               s.model.shape.max_context);
  if (!bad) bad = session_start(&s, o, most + tokens, e);
  catch_signals();
  for (ptrdiff_t i = 0; !bad && i < arrlen(contexts); i++) {
    BenchResult r;
    bad = bench_decode(&s.decoder, (uint32_t)contexts[i], tokens, o->runs ? (uint32_t)o->runs : 5,
                       &interrupted, &r, e);
    if (!bad) bench_print(&r, i == 0, o->tsv, stdout);
    if (!bad) bad = print(NULL, 0, e);
  }
  arrfree(contexts);
  session_close(&s);
  return bad;
}
//< bench_command

/*: ## trace

One token is decoded a few times to warm up and then once on the clock. :*/
//> trace_command
static int write_trace(const Options *o, const Session *s, uint32_t context, const uint64_t *ns,
                       Error *e) {
  if (!o->output) return 0;
  AtomicFile f;
  if (atomic_open(&f, o->output, e) != 0) return -1;
  trace_chrome(s->plan, context, ns, f.f);
  int bad =
      ferror(f.f) ? fail(e, EXIT_FAIL, "%s: %s", o->output, strerror(errno)) : atomic_commit(&f, e);
  atomic_abort(&f);
  return bad;
}

static int command_trace(const Options *o, Error *e) {
  Session s;
  uint32_t context = o->context ? (uint32_t)o->context : 1, steps = 8, made;
  int32_t given = 0, ids[GPU_LAUNCH];
  bool stopped;
  uint64_t *ns = NULL;
  int bad = session_open(&s, o, false, e);
  if (!bad) bad = session_start(&s, o, context + steps, e);
  if (!bad && !s.decoder.gpu) bad = fail(e, EXIT_USAGE, "trace: needs a GPU");
  if (!bad) {
    ns = calloc((size_t)s.plan->workers * (s.plan->wave_count + 1), 2 * sizeof *ns);
    bad = ns ? 0 : fail(e, EXIT_FAIL, "out of memory");
  }
  if (!bad) bad = decoder_seed_cache(&s.decoder, context, e);
  for (int run = 0; run < 3 && !bad; run++) {
    bad = gpu_trace(s.decoder.gpu, steps / 2, e);
    if (!bad)
      bad = gpu_decode(s.decoder.gpu, &given, 1, context - 1, steps, true, ids, &made, &stopped, e);
  }
  if (!bad && made <= steps / 2) bad = fail(e, EXIT_FAIL, "trace: the token was never reached");
  if (!bad) bad = gpu_trace_read(s.decoder.gpu, ns, e);
  if (!bad) {
    trace_account(s.plan, context + steps / 2, gpu_read_rate(s.decoder.gpu), ns, stdout);
    bad = write_trace(o, &s, context + steps / 2, ns, e);
  }
  if (!bad) bad = print(NULL, 0, e);
  free(ns);
  session_close(&s);
  return bad;
}
//< trace_command

/*: ## The table of commands :*/
//> main
static const Command commands[] = {
    {"run", "pfincxwdFYMt",
     "tiles run MODEL (-p TEXT | -f FILE | --ids LIST) [-n N] [--chat] [--ctx N] [--workers N]\n"
     "               [--device auto|cpu|cuda:N] [--ffn fused|split]\n"
     "               [--sync barrier|data] [--smem BYTES]\n"
     "  Decodes up to N (256) tokens after the prompt, greedily: text on stdout, or ids with "
     "--ids.\n"
     "  MODEL is a Hugging Face folder, a GGUF file, or a package made by tiles plan -o.\n"
     "    tiles run models/SmolLM2-135M-Instruct.Q4_1.gguf --chat -p 'What is gravity?'\n",
     command_run, true},
    {"plan", "txwFYMevod",
     "tiles plan MODEL|SHAPE [--target NAME|FILE] [--context N] [--workers N]\n"
     "               [--ffn fused|split] [--sync barrier|data] [--smem BYTES]\n"
     "               [--explain|--tsv] [-o FILE]\n"
     "  Plans one token and explains the plan, or writes plan and packed weights to FILE.\n"
     "  --smem holds a block's shared memory to BYTES: 101376 is what many smaller cards have.\n"
     "    tiles plan llama-3.2-1b --target rtx-3050 --context 4096\n",
     command_plan, true},
    {"check", "",
     "tiles check PLAN\n"
     "  Validates a package: header, plan, every rule, and the hashes of its weights.\n",
     command_check, true},
    {"bench", "xXnrwvdFYMt",
     "tiles bench MODEL [--ctx LIST] [-n N] [--runs N] [--workers N] [--device auto|cpu|cuda:N]\n"
     "               [--ffn fused|split] [--sync barrier|data] [--smem BYTES] [--tsv]\n"
     "  Streaming-read rate, floor, median ms/token and share of the floor at each context.\n"
     "    tiles bench DIR --ctx 1,4096\n",
     command_bench, true},
    {"trace", "xwodFYMt",
     "tiles trace MODEL [--ctx N] [--workers N] [--device cuda:N] [--ffn fused|split]\n"
     "               [--sync barrier|data] [--smem BYTES] [-o FILE]\n"
     "  Where one token's time goes on a GPU, stage by stage; -o writes a Chrome/Perfetto trace.\n",
     command_trace, true},
    {"probe", "wodWM",
     "tiles probe [--device auto|cpu|cuda:N] [--workers N] [--sweep | [--smem BYTES] [-o FILE]]\n"
     "  Measures this machine and prints a target for tiles plan --target FILE; with --sweep, a "
     "GPU's\n"
     "  read rate against the number of workers.\n",
     command_probe, false},
    {"synth", "s",
     "tiles synth SHAPE DIR [--seed N]\n"
     "  Writes a checkpoint with seeded random weights; SHAPE may end in :f32, :bf16 or :f16.\n"
     "    tiles synth llama-3.2-1b /tmp/1b --seed 7\n",
     command_synth, true},
    {"logits", "iowadFYMtr",
     "tiles logits MODEL --ids LIST [--all] [-o FILE] [--workers N] [--device auto|cpu|cuda:N]\n"
     "               [--ffn fused|split] [--sync barrier|data] [--smem BYTES]\n"
     "  The last position's logits (all positions' with --all) as 32-bit floats.\n"
     "tiles logits MODEL --ids LIST --runs N\n"
     "  The same N times over: fails unless all runs give the same bits.\n",
     command_logits, true},
    {"tokenize", "pfDS",
     "tiles tokenize MODEL [-p TEXT | -f FILE] [--decode] [--no-special]\n"
     "  Text to ids, or ids to text; from stdin unless -p or -f says otherwise.\n",
     command_tokenize, true},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *f) {
  fputs("tiles " TILES_VERSION ": decodes a language model, one token at a time, near the speed of "
        "memory\n\n"
        "  tiles run MODEL -p TEXT     continue a text; --chat to ask a question\n"
        "  tiles plan MODEL|SHAPE      the tiles, waves and bytes of one token, and the floor\n"
        "  tiles check PLAN            validate a package\n"
        "  tiles bench MODEL           ms/token beside the floor\n"
        "  tiles trace MODEL           one token on the clock, wave by wave\n"
        "  tiles probe                 measure this machine\n"
        "  tiles synth SHAPE DIR       a checkpoint with random weights\n"
        "  tiles logits MODEL --ids L  logits, for comparing\n"
        "  tiles tokenize MODEL        text to ids and back\n\n"
        "MODEL is a Hugging Face folder, a GGUF file, or a package (tiles plan MODEL -o FILE).\n"
        "tiles COMMAND --help says more. Exit codes: 1 machine, 2 command line, 3 file, 4 plan\n"
        "refused, 5 non-finite logits, 130 interrupted.\n",
        f);
  fprintf(f, "Shapes: %s\n", shape_names());
}

int main(int argc, char **argv) {
  if (argc < 2) {
    usage(stderr);
    return EXIT_USAGE;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
      strcmp(argv[1], "help") == 0) {
    usage(stdout);
    return EXIT_OK;
  }
  if (strcmp(argv[1], "--version") == 0) {
    puts("tiles " TILES_VERSION);
    return EXIT_OK;
  }
  for (int i = 0; i < COMMANDS; i++) {
    if (strcmp(argv[1], commands[i].name) != 0) continue;
    Options o;
    Error e = {.code = EXIT_OK};
    int bad = parse_options(&commands[i], argc - 1, argv + 1, &o, &e);
    if (!bad && o.help) {
      fputs(commands[i].usage, stdout);
      return EXIT_OK;
    }
    if (!bad) bad = commands[i].run(&o, &e);
    if (bad && e.code != EXIT_OK) fprintf(stderr, "tiles: %s\n", e.text);
    return bad ? e.code : EXIT_OK;
  }
  fprintf(stderr, "tiles: unknown command %s; see tiles --help\n", argv[1]);
  return EXIT_USAGE;
}
//< main
