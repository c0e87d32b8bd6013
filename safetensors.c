/*: # Tensors by name: safetensors

A safetensors file is eight bytes of length, a JSON header of that length, and the tensors' bytes
one behind the other:

    | n: 8 bytes, little-endian | header: n bytes of JSON | data ...                       |

    {"__metadata__": {"format": "pt"},
     "model.norm.weight": {"dtype": "BF16", "shape": [2048], "data_offsets": [0, 4096]}, ...}

Offsets count from the end of the header, which nobody has to pad, so a tensor may begin at any
address: whoever reads it must not assume alignment. Nothing is copied here. We map the file and
note where each tensor lies, after proving that it lies there: every byte of the data belongs to
exactly one tensor, and the file ends where the last one does. A short file would otherwise read as
zeros, and a model with some zero rows still talks. :*/
#include "tiles.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stb/stb_ds.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*: ## The list

Names are looked up a dozen times for every layer and headers hold thousands of them, so the list
has a hash map beside it. The map borrows its keys from the list. :*/
//> tensor_find
const Tensor *tensor_find(const TensorSet *t, const char *name) {
  struct TensorEntry *map = t->by_name;
  if (!map) return NULL; // stb_ds would allocate an empty map to answer
  ptrdiff_t i = shgeti(map, name);
  return i < 0 ? NULL : &t->list[map[i].value];
}

void tensors_close(TensorSet *t) {
  shfree(t->by_name);
  for (ptrdiff_t i = 0; i < arrlen(t->list); i++) free(t->list[i].name);
  arrfree(t->list);
  for (ptrdiff_t i = 0; i < arrlen(t->maps); i++) unmap_file(&t->maps[i]);
  arrfree(t->maps);
  for (ptrdiff_t i = 0; i < arrlen(t->files); i++) free(t->files[i]);
  arrfree(t->files);
  *t = (TensorSet){0};
}
//< tensor_find

/*: ## One entry of the header

Types that we cannot compute with are still types that we know the size of: an unused I64 tensor
does no harm, and one in the place of a weight is refused later, by the name of what it is a sign
of. :*/
//> safetensors_type
static const struct {
  const char *name;
  unsigned bits;
  DType dtype;
} TYPES[] = {{"F32", 32, DT_F32},         {"BF16", 16, DT_BF16},       {"F16", 16, DT_F16},
             {"BOOL", 8, DT_NONE},        {"U8", 8, DT_NONE},          {"I8", 8, DT_NONE},
             {"F8_E4M3", 8, DT_NONE},     {"F8_E5M2", 8, DT_NONE},     {"F8_E8M0", 8, DT_NONE},
             {"F8_E4M3FNUZ", 8, DT_NONE}, {"F8_E5M2FNUZ", 8, DT_NONE}, {"F4", 4, DT_NONE},
             {"F6_E2M3", 6, DT_NONE},     {"F6_E3M2", 6, DT_NONE},     {"I16", 16, DT_NONE},
             {"U16", 16, DT_NONE},        {"I32", 32, DT_NONE},        {"U32", 32, DT_NONE},
             {"I64", 64, DT_NONE},        {"U64", 64, DT_NONE},        {"F64", 64, DT_NONE},
             {"C64", 64, DT_NONE}};
//< safetensors_type

/*: Shape and range say the same thing twice, and that is their use: a tensor whose elements do not fill
its range exactly is refused here, before the ranges are compared with each other. :*/
//> safetensors_entry
// JSON numbers arrive as doubles; a size is one that is whole and that a double holds exactly.
static bool as_size(const cJSON *j, uint64_t *out) {
  double d = cJSON_IsNumber(j) ? j->valuedouble : -1;
  if (!(d >= 0 && d <= 9007199254740992.0) || d != (double)(uint64_t)d) return false;
  *out = (uint64_t)d;
  return true;
}

// data: what follows the header, [data_bytes]. begin, end: the offsets, still to be proven.
static int parse_entry(const char *file, const cJSON *j, Tensor *t, uint64_t *begin, uint64_t *end,
                       Error *e) {
  const char *name = j->string;
  const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL;
  if (!cJSON_IsObject(j)) return fail(e, EXIT_INPUT, "%s: tensor %s: not an object", file, name);
  for (const cJSON *k = j->child; k; k = k->next) {
    const cJSON **slot = !strcmp(k->string, "dtype")          ? &dtype
                         : !strcmp(k->string, "shape")        ? &shape
                         : !strcmp(k->string, "data_offsets") ? &offsets
                                                              : NULL;
    if (!slot) continue;
    if (*slot) return fail(e, EXIT_INPUT, "%s: tensor %s: %s twice", file, name, k->string);
    *slot = k;
  }
  if (!dtype || !shape || !offsets || !cJSON_IsString(dtype) || !cJSON_IsArray(shape) ||
      !cJSON_IsArray(offsets))
    return fail(e, EXIT_INPUT, "%s: tensor %s: needs dtype, shape and data_offsets", file, name);

  unsigned bits = 0;
  for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
    if (!strcmp(dtype->valuestring, TYPES[i].name)) {
      bits = TYPES[i].bits;
      t->dtype = TYPES[i].dtype;
    }
  if (!bits)
    return fail(e, EXIT_INPUT, "%s: tensor %s: unknown type %.32s", file, name, dtype->valuestring);
  snprintf(t->type, sizeof t->type, "%s", dtype->valuestring);

  uint64_t total_bits = bits;
  for (const cJSON *d = shape->child; d; d = d->next) {
    uint64_t n;
    if (!as_size(d, &n) || n > INT64_MAX)
      return fail(e, EXIT_INPUT, "%s: tensor %s: dimension %d is not a size", file, name, t->rank);
    if (t->rank == 4)
      return fail(e, EXIT_INPUT, "%s: tensor %s: %d dimensions, at most 4", file, name,
                  cJSON_GetArraySize(shape));
    t->dim[t->rank++] = (int64_t)n;
    if (__builtin_mul_overflow(total_bits, n, &total_bits))
      return fail(e, EXIT_INPUT, "%s: tensor %s: its shape has more than 2^64 bits", file, name);
  }
  const cJSON *first = offsets->child, *second = first ? first->next : NULL;
  if (!second || second->next || !as_size(first, begin) || !as_size(second, end) || *begin > *end)
    return fail(e, EXIT_INPUT, "%s: tensor %s: data_offsets are not a range", file, name);
  t->bytes = *end - *begin;
  if (total_bits % 8 || total_bits / 8 != t->bytes)
    return fail(e, EXIT_INPUT,
                "%s: tensor %s: its shape takes %" PRIu64 " bytes, its data_offsets %" PRIu64, file,
                name, total_bits / 8, t->bytes);
  return 0;
}
//< safetensors_entry

/*: ## One file

The order of the keys says nothing (the reference writer sorts by type before it sorts by name), so
the ranges are sorted before we walk them. A hole, an overlap, a byte too many or too few: each is
refused with the two numbers that disagree. :*/
//> safetensors_parse
typedef struct Range {
  uint64_t begin, end;
  ptrdiff_t index; // into the list
} Range;

static int by_begin(const void *a, const void *b) {
  const Range *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

static int check_ranges(const char *file, const TensorSet *set, Range *range, ptrdiff_t count,
                        uint64_t header_bytes, uint64_t data_bytes, Error *e) {
  uint64_t at = 0, last = 0;
  for (ptrdiff_t i = 0; i < count; i++)
    if (range[i].end > last) last = range[i].end;
  if (last > data_bytes)
    return fail(e, EXIT_INPUT, "%s: declares %" PRIu64 " bytes, file has %" PRIu64, file,
                8 + header_bytes + last, 8 + header_bytes + data_bytes);
  if (count) qsort(range, (size_t)count, sizeof *range, by_begin);
  for (ptrdiff_t i = 0; i < count; i++) {
    if (range[i].begin != at)
      return fail(e, EXIT_INPUT,
                  "%s: tensor %s: begins at byte %" PRIu64 ", the one before it ends at %" PRIu64,
                  file, set->list[range[i].index].name, range[i].begin, at);
    at = range[i].end;
  }
  if (at != data_bytes)
    return fail(e, EXIT_INPUT, "%s: tensors end at byte %" PRIu64 ", the file's data at %" PRIu64,
                file, at, data_bytes);
  return 0;
}

static int check_metadata(const char *file, const cJSON *j, Error *e) {
  if (!cJSON_IsObject(j) && !cJSON_IsNull(j))
    return fail(e, EXIT_INPUT, "%s: __metadata__ is not an object", file);
  for (const cJSON *k = j->child; k; k = k->next)
    if (!cJSON_IsString(k))
      return fail(e, EXIT_INPUT, "%s: __metadata__: %s is not a string", file, k->string);
  return 0;
}

// Everything but the JSON tree and the ranges, which the caller frees.
static int parse_tree(const char *file, const cJSON *tree, uint64_t header_bytes,
                      const uint8_t *data, uint64_t data_bytes, TensorSet *out, Range **ranges,
                      Error *e) {
  bool metadata = false;
  for (const cJSON *j = tree->child; j; j = j->next) {
    if (!strcmp(j->string, "__metadata__")) {
      if (metadata) return fail(e, EXIT_INPUT, "%s: __metadata__ twice", file);
      metadata = true;
      if (check_metadata(file, j, e) != 0) return -1;
      continue;
    }
    const Tensor *other = tensor_find(out, j->string);
    if (other)
      return fail(e, EXIT_INPUT, "%s: tensor %s: named twice, first in %s", file, j->string,
                  other->file);
    Tensor t = {.file = file};
    Range r = {.index = arrlen(out->list)};
    if (r.index == INT32_MAX) return fail(e, EXIT_INPUT, "%s: more tensors than an int", file);
    if (parse_entry(file, j, &t, &r.begin, &r.end, e) != 0) return -1;
    if (!(t.name = strdup(j->string))) return fail(e, EXIT_FAIL, "%s: out of memory", file);
    // Where the range passes the end the address is never formed; check_ranges says why.
    t.data = r.end <= data_bytes ? data + r.begin : data;
    arrput(out->list, t);
    shput(out->by_name, t.name, (int32_t)r.index);
    arrput(*ranges, r);
  }
  return check_ranges(file, out, *ranges, arrlen(*ranges), header_bytes, data_bytes, e);
}

int safetensors_parse(const char *file, const uint8_t *data, size_t size, TensorSet *out,
                      Error *e) {
  enum { HEADER_MOST = 100000000 }; // the reference implementation's limit
  if (size < 8) return fail(e, EXIT_INPUT, "%s: %zu bytes, a header takes at least 8", file, size);
  uint64_t n = 0;
  for (int i = 0; i < 8; i++) n |= (uint64_t)data[i] << 8 * i;
  if (n > HEADER_MOST)
    return fail(e, EXIT_INPUT, "%s: header of %" PRIu64 " bytes, at most %d", file, n, HEADER_MOST);
  if (n > size - 8)
    return fail(e, EXIT_INPUT, "%s: declares a header of %" PRIu64 " bytes, file has %zu", file, n,
                size - 8);
  const char *header = (const char *)data + 8;
  if (n < 2 || header[0] != '{')
    return fail(e, EXIT_INPUT, "%s: header of %" PRIu64 " bytes does not begin with {", file, n);
  // A name with a NUL in it would be two names to C and one to everybody else.
  if (memmem(header, n, "\\u0000", 6))
    return fail(e, EXIT_INPUT, "%s: header: a NUL in a name", file);

  char *kept = strdup(file);
  if (!kept) return fail(e, EXIT_FAIL, "%s: out of memory", file);
  arrput(out->files, kept);
  cJSON *tree = json_parse(file, header, n, e);
  if (!tree) return -1;
  Range *ranges = NULL;
  int rc = cJSON_IsObject(tree)
               ? parse_tree(kept, tree, n, data + 8 + n, size - 8 - n, out, &ranges, e)
               : fail(e, EXIT_INPUT, "%s: header is not an object", file);
  arrfree(ranges);
  cJSON_Delete(tree);
  return rc;
}
//< safetensors_parse

/*: ## A folder

A large model comes in shards, and an index says which tensor lies in which. The index is a file
like any other: its names must stay inside the folder, and what it promises must be there. :*/
//> safetensors_open
static int open_file(const char *path, TensorSet *out, Error *e) {
  Mapping map;
  if (map_file(path, &map, e) != 0) return -1;
  arrput(out->maps, map);
  return safetensors_parse(path, map.data, map.size, out, e);
}

static bool plain_name(const char *name) {
  return *name && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

static int open_shards(const char *folder, const char *index, const cJSON *tree, TensorSet *out,
                       Error *e) {
  const cJSON *map = cJSON_GetObjectItemCaseSensitive(tree, "weight_map");
  if (!cJSON_IsObject(map) || !map->child)
    return fail(e, EXIT_INPUT, "%s: weight_map: missing or empty", index);
  size_t room = strlen(folder) + 1;
  int rc = 0;
  struct {
    char *key;   // the shard as the index names it; borrowed from the tree
    char *value; // its path; kept by `out`
  } *shard = NULL;
  for (const cJSON *j = map->child; j && rc == 0; j = j->next) {
    if (!cJSON_IsString(j)) {
      rc = fail(e, EXIT_INPUT, "%s: tensor %s: its file is not a string", index, j->string);
    } else if (!plain_name(j->valuestring)) {
      rc = fail(e, EXIT_INPUT, "%s: tensor %s: %s is not a file of this folder", index, j->string,
                j->valuestring);
    } else if (!shard || shgeti(shard, j->valuestring) < 0) {
      char *path = malloc(room + strlen(j->valuestring) + 1);
      if (!path) {
        rc = fail(e, EXIT_FAIL, "%s: out of memory", index);
        break;
      }
      sprintf(path, "%s/%s", folder, j->valuestring);
      arrput(out->files, path);
      shput(shard, j->valuestring, path);
      rc = access(path, R_OK) == 0 ? open_file(path, out, e)
                                   : fail(e, EXIT_INPUT, "%s: named by %s: %s", path,
                                          "model.safetensors.index.json", strerror(errno));
    }
  }
  for (const cJSON *j = map->child; j && rc == 0; j = j->next) {
    const Tensor *t = tensor_find(out, j->string);
    const char *path = shget(shard, j->valuestring);
    if (!t || strcmp(t->file, path) != 0)
      rc = fail(e, EXIT_INPUT, "%s: tensor %s: not in %s%s%s", index, j->string, path,
                t ? " but in " : "", t ? t->file : "");
  }
  shfree(shard);
  return rc;
}

int safetensors_open(const char *folder, TensorSet *out, Error *e) {
  *out = (TensorSet){0};
  size_t room = strlen(folder) + sizeof "/model.safetensors.index.json";
  char *path = malloc(room);
  if (!path) return fail(e, EXIT_FAIL, "%s: out of memory", folder);
  int rc;
  snprintf(path, room, "%s/model.safetensors", folder);
  if (access(path, F_OK) == 0) {
    rc = open_file(path, out, e);
  } else {
    snprintf(path, room, "%s/model.safetensors.index.json", folder);
    Mapping map;
    if (access(path, F_OK) != 0) {
      snprintf(path, room, "%s/pytorch_model.bin", folder);
      rc = fail(e, EXIT_INPUT, "%s: no model.safetensors and no model.safetensors.index.json%s",
                folder, access(path, F_OK) == 0 ? "; convert pytorch_model.bin first" : "");
    } else if ((rc = map_file(path, &map, e)) == 0) {
      cJSON *tree = json_parse(path, map.data, map.size, e);
      rc = tree ? open_shards(folder, path, tree, out, e) : -1;
      cJSON_Delete(tree);
      unmap_file(&map);
    }
  }
  free(path);
  if (rc != 0) tensors_close(out);
  return rc;
}
//< safetensors_open
