/*: # Text to ids and back

A model knows no text, only ids. Which ids a text becomes is a matter of **steps**, and every checkpoint
has its own: `vocab.c` reads them from its files, and this file runs them.

    text ─ special tokens cut out ─ normal form ─ cut into pieces ─ pieces to tokens ─ BOS before it all

The way back is shorter: every id has its bytes, and bytes are printed as soon as they are characters. :*/
#include "tiles.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <stb/stb_ds.h>
#include <utf8proc.h>

/*: ## Characters

A position in a checked text, as a number. :*/
//> characters
static int32_t char_at(const char *p, size_t bytes, size_t *size) {
  utf8proc_int32_t c = -1;
  utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)bytes, &c);
  *size = n > 0 ? (size_t)n : 1;
  return c;
}

static int32_t char_before(const char *p, size_t at, size_t *size) {
  size_t start = at - 1;
  while (start && ((uint8_t)p[start] & 0xc0) == 0x80) start--;
  return char_at(p + start, at - start, size);
}

// Unicode's White_Space.
static bool is_space(int32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

// What the reference takes for a part of a word: letters, marks, digits, connectors, joiners.
static bool is_word(int32_t c) {
  switch (utf8proc_category(c)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO:
  case UTF8PROC_CATEGORY_MN:
  case UTF8PROC_CATEGORY_MC:
  case UTF8PROC_CATEGORY_ME:
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_PC: return true;
  default: break;
  }
  return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
         (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
         (c >= 0x1f170 && c <= 0x1f189);
}
//< characters

/*: ## Normal form

NFC takes every character apart, sorts the marks behind each base by their class, and puts together what
has a composed form. utf8proc knows the tables. Three things are ours:

- The sorting. utf8proc sorts by swapping neighbours, and a text of 100,000 marks in the wrong order would
  take it minutes.
- The age. The reference's tables are those of Unicode 9. To it a mark that came later is no mark but a
  character like any other, which parts the marks before it from those behind it. We list what came later
  and has a class or a composed form.
- U+11A7, the "no final" of Hangul, which utf8proc swallows and which composes with nothing. :*/
//> nfc_young
static const int32_t young[][2] = {
    {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},
    {0x1715, 0x1715},   {0x1abf, 0x1aff},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
    {0x105c9, 0x105c9}, {0x105d2, 0x105d2}, {0x105da, 0x105da}, {0x105e4, 0x105e4},
    {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10efa, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
    {0x11380, 0x113ff}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11943},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x11f00, 0x11f5f}, {0x16100, 0x1613f},
    {0x16d40, 0x16d7f}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef},
    {0x1e6e3, 0x1e6f5},
};

// Parts the text on both its sides, and stays as it is.
static bool parts_text(int32_t c) {
  size_t low = 0, high = sizeof young / sizeof *young;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (c > young[middle][1]) low = middle + 1;
    else high = middle;
  }
  return low < sizeof young / sizeof *young && c >= young[low][0];
}
//< nfc_young

//> nfc
typedef struct Mark {
  int32_t c;
  int32_t ccc; // canonical combining class
  uint32_t order;
} Mark;

static int by_class(const void *a, const void *b) {
  const Mark *x = a, *y = b;
  if (x->ccc != y->ccc) return x->ccc < y->ccc ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

static int32_t combining(int32_t c) {
  return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
}

// Sorts each run of marks in c[0, n).
static void order_marks(int32_t *c, size_t n) {
  Mark *run = NULL;
  for (size_t i = 0; i < n; i++) {
    int32_t last = 0;
    size_t end = i;
    bool sorted = true;
    for (int32_t ccc; end < n && (ccc = combining(c[end])) != 0; last = ccc, end++)
      sorted = sorted && ccc >= last;
    if (!sorted) {
      arrsetlen(run, end - i);
      for (size_t k = i; k < end; k++)
        run[k - i] = (Mark){c[k], combining(c[k]), (uint32_t)(k - i)};
      qsort(run, end - i, sizeof *run, by_class);
      for (size_t k = i; k < end; k++) c[k] = run[k - i].c;
    }
    if (end > i) i = end - 1;
  }
  arrfree(run);
}

static const utf8proc_option_t nfc_options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

static void put_char(char **out, int32_t c) {
  utf8proc_uint8_t b[4];
  text_append(out, (const char *)b, (size_t)utf8proc_encode_char(c, b));
}

// Composes what was taken apart, appends it to *out and empties *c.
static int compose(int32_t **c, char **out, Error *e) {
  if (!arrlen(*c)) return 0;
  order_marks(*c, arrlenu(*c));
  utf8proc_ssize_t n = utf8proc_normalize_utf32(*c, (utf8proc_ssize_t)arrlen(*c), nfc_options);
  for (utf8proc_ssize_t i = 0; i < n; i++) put_char(out, (*c)[i]);
  arrsetlen(*c, 0);
  return n < 0 ? fail(e, EXIT_FAIL, "text: no NFC: %s", utf8proc_errmsg(n)) : 0;
}

// Replaces *text by its NFC. Below U+0300 every text is its own.
static int nfc(char **text, Error *e) {
  size_t bytes = arrlenu(*text), at = 0, size;
  while (at < bytes && (uint8_t)(*text)[at] < 0xcc) at++;
  if (at == bytes) return 0;
  int32_t *c = NULL;
  char *out = NULL;
  int bound = 0, r = 0;
  for (at = 0; at < bytes && r == 0; at += size) {
    int32_t one = char_at(*text + at, bytes - at, &size), parts[8];
    if (parts_text(one)) {
      r = compose(&c, &out, e);
      put_char(&out, one);
      continue;
    }
    utf8proc_ssize_t n = utf8proc_decompose_char(one, parts, 8, nfc_options, &bound);
    if (n < 0 || n > 8) r = fail(e, EXIT_FAIL, "text: no NFC of U+%04X", (unsigned)one);
    else
      for (utf8proc_ssize_t k = 0; k < n; k++) arrput(c, parts[k]);
  }
  if (r == 0) r = compose(&c, &out, e);
  arrfree(c);
  arrfree(*text);
  *text = out;
  return r;
}
//< nfc

/*: ## Pieces

A piece is a stretch of one buffer, so a cut moves no text. Only a step that changes text writes a new
buffer. What an added token took is kept apart from the beginning; it never gets here. :*/
//> pieces
typedef struct Piece {
  size_t start, end;
} Piece;

typedef struct Pieces {
  char *text;    // stb_ds array
  Piece *list;   // stb_ds array
  bool at_front; // the first piece begins the whole text
  size_t limit;  // bytes that the text may grow to, whatever a file says
} Pieces;

static size_t growth(size_t bytes) { return 65536 + 64 * bytes; }

static void add_piece(Piece **list, size_t start, size_t end) {
  if (end > start) arrput(*list, ((Piece){start, end}));
}

static void extend_last(Piece *list, size_t end) {
  if (arrlen(list)) arrlast(list).end = end;
}

// Cuts text[a, b) at the matches of a step.
static int split_piece(const TextStep *s, PatternScan *scan, const char *text, size_t a, size_t b,
                       Piece **out, Error *e) {
  // All stretches first, matched and unmatched in turn; then what becomes of them.
  Piece *part = NULL;
  bool *hit = NULL;
  size_t at = 0, start, end;
  int r;
  while ((r = pattern_next(s->pattern, scan, text + a, b - a, at, &start, &end, e)) == 1) {
    if (start > at) {
      arrput(part, ((Piece){a + at, a + start}));
      arrput(hit, s->invert);
    }
    arrput(part, ((Piece){a + start, a + end}));
    arrput(hit, !s->invert);
    at = end;
  }
  if (at < b - a) {
    arrput(part, ((Piece){a + at, b}));
    arrput(hit, s->invert);
  }
  ptrdiff_t n = r < 0 ? 0 : arrlen(part);
  switch (s->cut) {
  case CUT_ISOLATED:
    for (ptrdiff_t i = 0; i < n; i++) add_piece(out, part[i].start, part[i].end);
    break;
  case CUT_REMOVED:
    for (ptrdiff_t i = 0; i < n; i++)
      if (!hit[i]) add_piece(out, part[i].start, part[i].end);
    break;
  case CUT_CONTIGUOUS: // neighbours of a kind are one
    for (ptrdiff_t i = 0; i < n; i++)
      if (i && hit[i] == hit[i - 1]) extend_last(*out, part[i].end);
      else add_piece(out, part[i].start, part[i].end);
    break;
  case CUT_TO_PREVIOUS: // a match ends the piece before it, unless that is a match
    for (ptrdiff_t i = 0; i < n; i++)
      if (i && hit[i] && !hit[i - 1]) extend_last(*out, part[i].end);
      else add_piece(out, part[i].start, part[i].end);
    break;
  case CUT_TO_NEXT: // the same from the other end
    for (ptrdiff_t i = 0; i < n; i++)
      if (i && hit[i - 1] && !hit[i]) extend_last(*out, part[i].end);
      else add_piece(out, part[i].start, part[i].end);
    break;
  }
  arrfree(part);
  arrfree(hit);
  return r < 0 ? -1 : 0;
}
//< pieces

/*: ### The byte alphabet

Byte-level vocabularies write every byte as one printable letter, so that their files are readable
text: printable bytes stand for themselves, and the other 68 get the letters from U+0100 on. The space
is "Ġ", the newline "Ċ". :*/
//> byte_alphabet
static bool byte_is_printable(int b) {
  return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

// The letters of all bytes, as UTF-8 of one or two bytes.
static void byte_letters(char letter[256][2], uint8_t bytes[256]) {
  int32_t next = 256;
  for (int b = 0; b < 256; b++) {
    utf8proc_uint8_t u[4];
    bytes[b] = (uint8_t)utf8proc_encode_char(byte_is_printable(b) ? b : next++, u);
    memcpy(letter[b], u, 2);
  }
}

// The byte of a letter, or -1.
static int letter_byte(int32_t c) {
  if (c < 256) return byte_is_printable(c) ? c : -1;
  if (c < 256 + 33) return c - 256;             // 0x00 to 0x20
  if (c < 256 + 67) return c - 256 - 33 + 0x7f; // 0x7f to 0xa0
  return c == 256 + 67 ? 0xad : -1;
}
//< byte_alphabet

/*: ### The steps

Each takes all pieces and leaves others in their place. What grows a text has a limit in
proportion to the text that came in, so that no list of steps can fill the memory. :*/
//> run_step
static int replace(const TextStep *s, PatternScan *scan, const char *text, size_t bytes, char **out,
                   Error *e) {
  size_t at = 0, start, end;
  int r;
  while ((r = pattern_next(s->pattern, scan, text, bytes, at, &start, &end, e)) == 1) {
    text_append(out, text + at, start - at);
    text_append(out, s->text, s->bytes);
    at = end;
  }
  text_append(out, text + at, bytes - at);
  return r;
}

// One step over all pieces.
static int run_step(const TextStep *s, PatternScan *scan, Pieces *p, Error *e) {
  char *text = NULL;
  Piece *list = NULL;
  int r = 0;
  if (s->kind == STEP_NFC) { // only ever one piece, the whole
    r = nfc(&p->text, e);
    if (arrlen(p->list)) p->list[0].end = arrlenu(p->text);
    return r;
  }
  char letter[256][2];
  uint8_t bytes[256];
  if (s->kind == STEP_BYTES) byte_letters(letter, bytes);
  for (ptrdiff_t i = 0; i < arrlen(p->list) && r == 0; i++) {
    size_t a = p->list[i].start, b = p->list[i].end, start = arrlenu(text);
    switch (s->kind) {
    case STEP_SPLIT: r = split_piece(s, scan, p->text, a, b, &list, e); continue;
    case STEP_PREPEND:
      if ((!s->only_first || (i == 0 && p->at_front && a == 0)) &&
          !(s->unless && b - a >= s->bytes && memcmp(p->text + a, s->text, s->bytes) == 0))
        text_append(&text, s->text, s->bytes);
      text_append(&text, p->text + a, b - a);
      break;
    case STEP_REPLACE: r = replace(s, scan, p->text + a, b - a, &text, e); break;
    case STEP_BYTES:
      for (size_t k = a; k < b; k++) {
        uint8_t c = (uint8_t)p->text[k];
        text_append(&text, letter[c], bytes[c]);
      }
      break;
    case STEP_NFC: break;
    }
    if (r == 0 && arrlenu(text) > p->limit)
      r = fail(e, EXIT_INPUT, "text: the steps make more than %zu bytes of it", p->limit);
    add_piece(&list, start, arrlenu(text));
  }
  if (s->kind != STEP_SPLIT) {
    arrfree(p->text);
    p->text = text;
  }
  // A first piece that a cut removed takes the front of the text with it.
  if (arrlen(list) && list[0].start != 0) p->at_front = false;
  arrfree(p->list);
  p->list = list;
  return r;
}

int tokenizer_normalize(const Tokenizer *t, char **text, Error *e) {
  PatternScan *scan = pattern_scan();
  if (!scan) return fail(e, EXIT_FAIL, "text: out of memory");
  Pieces p = {.text = *text, .at_front = true, .limit = growth(arrlenu(*text))};
  add_piece(&p.list, 0, arrlenu(p.text));
  int r = 0;
  for (ptrdiff_t i = 0; i < arrlen(t->normal) && r == 0; i++)
    r = run_step(&t->normal[i], scan, &p, e);
  *text = p.text;
  arrfree(p.list);
  pattern_scan_free(scan);
  return r;
}
//< run_step

/*: ## Added tokens

Added tokens are looked for in the raw text or, if they say so, in its normal form: at each place the
longest that begins there. They may demand to stand alone as a word, and may swallow the space around
them. In a text that is only data, **special** ones are not looked for: nobody may end a user's turn by
typing `<|im_end|>`. :*/
//> added_find
// At or after `from`: the index of the token and its place, or -1.
static ptrdiff_t added_find(const AddedTokens *set, const char *text, size_t bytes, size_t from,
                            size_t *start) {
  if (!arrlen(set->list)) return -1;
  for (size_t at = from; at < bytes; at++) {
    uint8_t c = (uint8_t)text[at];
    for (uint32_t i = set->first[c]; i < set->first[c + 1]; i++) {
      const AddedToken *a = &set->list[i];
      if (a->bytes <= bytes - at && memcmp(a->text, text + at, a->bytes) == 0) {
        *start = at;
        return i;
      }
    }
  }
  return -1;
}

static bool stands_alone(const char *text, size_t bytes, size_t start, size_t end) {
  size_t size;
  return (start == 0 || !is_word(char_before(text, start, &size))) &&
         (end == bytes || !is_word(char_at(text + end, bytes - end, &size)));
}

typedef struct Stretch {
  size_t start, end;
  int32_t id; // -1: text
} Stretch;

// Cuts a text at the added tokens of a set. out: stb_ds array
static void added_cut(const AddedTokens *set, const char *text, size_t bytes, bool special,
                      Stretch **out) {
  size_t done = 0, from = 0, start;
  for (ptrdiff_t i; (i = added_find(set, text, bytes, from, &start)) >= 0;) {
    const AddedToken *a = &set->list[i];
    size_t end = start + a->bytes, size;
    from = end;
    if (a->special && !special) continue;
    if (a->single_word && !stands_alone(text, bytes, start, end)) continue;
    if (a->lstrip)
      while (start > done && is_space(char_before(text, start, &size))) start -= size;
    if (a->rstrip)
      while (end < bytes && is_space(char_at(text + end, bytes - end, &size))) end += size;
    if (start > done) arrput(*out, ((Stretch){done, start, -1}));
    arrput(*out, ((Stretch){start, end, a->id}));
    done = end;
  }
  if (done < bytes) arrput(*out, ((Stretch){done, bytes, -1}));
}
//< added_find

/*: ## Encoding

Added tokens first, then the normal form of what lies between them, then the cuts, then the vocabulary. A
stretch between two added tokens is encoded as if it were alone, but for one thing: some steps
want to know whether it begins the whole text. :*/
//> encode
static int check_id(const Tokenizer *t, int32_t id, Error *e) {
  if (!t->limit || id < t->limit) return 0;
  size_t bytes = 0;
  const char *text = vocab_text(&t->vocab, id, &bytes);
  return fail(e, EXIT_INPUT, "%s: token %.*s has id %d, the model has %d", t->file,
              (int)(bytes < 64 ? bytes : 64), text ? text : "", id, t->limit);
}

// A text without added tokens of the raw kind. at_front: it begins the whole text.
static int encode_stretch(const Tokenizer *t, PatternScan *scan, const char *text, size_t bytes,
                          bool special, bool at_front, int32_t **ids, Error *e) {
  Pieces p = {.at_front = at_front, .limit = growth(bytes)};
  Stretch *stretch = NULL;
  text_append(&p.text, text, bytes);
  add_piece(&p.list, 0, bytes);
  int r = 0;
  for (ptrdiff_t i = 0; i < arrlen(t->normal) && r == 0; i++)
    r = run_step(&t->normal[i], scan, &p, e);
  if (r == 0) added_cut(&t->normed, p.text, arrlenu(p.text), special, &stretch);

  for (ptrdiff_t i = 0; i < arrlen(stretch) && r == 0; i++) {
    if (stretch[i].id >= 0) {
      arrput(*ids, stretch[i].id);
      continue;
    }
    Pieces q = {.at_front = at_front && stretch[i].start == 0, .limit = p.limit};
    text_append(&q.text, p.text + stretch[i].start, stretch[i].end - stretch[i].start);
    add_piece(&q.list, 0, arrlenu(q.text));
    for (ptrdiff_t k = 0; k < arrlen(t->cuts) && r == 0; k++)
      r = run_step(&t->cuts[k], scan, &q, e);
    for (ptrdiff_t k = 0; k < arrlen(q.list) && r == 0; k++)
      r = vocab_encode(&t->vocab, q.text + q.list[k].start, q.list[k].end - q.list[k].start, ids,
                       e);
    arrfree(q.text);
    arrfree(q.list);
  }
  arrfree(stretch);
  arrfree(p.text);
  arrfree(p.list);
  return r;
}

// Without BOS.
static int encode(const Tokenizer *t, const char *text, size_t bytes, bool special, int32_t **ids,
                  Error *e) {
  size_t valid = utf8_valid(text, bytes);
  if (valid < bytes)
    return fail(e, EXIT_INPUT, "text: byte %zu of %zu (0x%02x) is not UTF-8", valid, bytes,
                (uint8_t)text[valid]);
  PatternScan *scan = pattern_scan();
  if (!scan) return fail(e, EXIT_FAIL, "text: out of memory");
  Stretch *stretch = NULL;
  added_cut(&t->raw, text, bytes, special, &stretch);
  ptrdiff_t before = arrlen(*ids);
  int r = 0;
  for (ptrdiff_t i = 0; i < arrlen(stretch) && r == 0; i++) {
    const Stretch *s = &stretch[i];
    if (s->id >= 0) arrput(*ids, s->id);
    else
      r = encode_stretch(t, scan, text + s->start, s->end - s->start, special, s->start == 0, ids,
                         e);
  }
  arrfree(stretch);
  pattern_scan_free(scan);
  const int32_t *list = *ids;
  for (ptrdiff_t i = before; list && i < arrlen(list) && r == 0; i++) r = check_id(t, list[i], e);
  if (r < 0) arrsetlen(*ids, (size_t)before);
  return r;
}
//< encode

/*: A BOS goes before the text where the checkpoint says so (`vocab.c` finds out). A prompt that was
copied with its BOS keeps that one and gets no second: the reference would add it, and the model has
never seen two. EOS is never added, whatever the files say, since the text is to be continued. :*/
//> tokenizer_encode
int tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, bool special,
                     int32_t **ids, Error *e) {
  ptrdiff_t before = arrlen(*ids), front = special ? arrlen(t->front) : 0;
  for (ptrdiff_t i = 0; i < front; i++) {
    if (check_id(t, t->front[i], e) < 0) {
      arrsetlen(*ids, (size_t)before);
      return -1;
    }
    arrput(*ids, t->front[i]);
  }
  if (encode(t, text, bytes, special, ids, e) < 0) {
    arrsetlen(*ids, (size_t)before);
    return -1;
  }
  if (front && *ids && arrlen(*ids) - before >= 2 * front &&
      memcmp(*ids + before, *ids + before + front, (size_t)front * sizeof **ids) == 0) {
    size_t n = 0;
    const char *bos = vocab_text(&t->vocab, t->front[0], &n);
    arrdeln(*ids, before, (size_t)front);
    notice("the text begins with %.*s itself: none is added", (int)n, bos ? bos : "");
  }
  return 0;
}
//< tokenizer_encode

/*: ## Decoding, a token at a time

A token is a string of bytes, not of characters: "🙂" may come as two tokens, and half of it is not
text yet. The bytes of an unfinished character are held back until it is whole. When the next byte
cannot go on with it, or the text ends, the held bytes come out as one U+FFFD; a byte that can begin
nothing is one U+FFFD too. That is what Unicode recommends and what the reference prints for byte-level
vocabularies. (For SentencePiece's byte tokens the reference prints one U+FFFD a byte.)

Special tokens print nothing and do not disturb a character that they interrupt. :*/
//> detokenize
static void put_byte(Detokenizer *d, uint8_t b, char **out) {
  if (d->held_count) {
    uint8_t lead = d->held[0];
    uint8_t low = 0x80, high = 0xbf;
    if (d->held_count == 1) { // overlong forms, surrogates, beyond U+10FFFF
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    if (b >= low && b <= high) {
      d->held[d->held_count++] = b;
      if (d->held_count == (lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2)) {
        text_append(out, (const char *)d->held, (size_t)d->held_count);
        d->held_count = 0;
      }
      return;
    }
    detokenize_flush(d, out);
  }
  if (b < 0x80) arrput(*out, (char)b);
  else if (b >= 0xc2 && b <= 0xf4) d->held[d->held_count++] = b;
  else text_append(out, "\xef\xbf\xbd", 3);
}

void detokenize_flush(Detokenizer *d, char **out) {
  if (d->held_count) text_append(out, "\xef\xbf\xbd", 3);
  d->held_count = 0;
}

// The byte of a token like <0x0A>, or -1.
static int token_byte(const char *text, size_t n) {
  if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || !isxdigit((uint8_t)text[3]) ||
      !isxdigit((uint8_t)text[4]))
    return -1;
  return (int)strtol((char[3]){text[3], text[4], 0}, NULL, 16);
}

void detokenize(Detokenizer *d, int32_t id, char **out) {
  const Tokenizer *t = d->tokenizer;
  size_t n, size;
  const char *text = vocab_text(&t->vocab, id, &n);
  if (!text || !n || t->printed[id] == PRINT_NOTHING) return;
  if (t->decoding == DECODE_BYTES) {
    // A token that was added or is not written in the byte alphabet is text as it is.
    bool letters = t->printed[id] != PRINT_AS_IT_IS;
    for (size_t i = 0; i < n && letters; i += size)
      letters = letter_byte(char_at(text + i, n - i, &size)) >= 0;
    for (size_t i = 0; i < n; i += size) {
      int32_t c = char_at(text + i, n - i, &size);
      if (letters) put_byte(d, (uint8_t)letter_byte(c), out);
      else
        for (size_t k = 0; k < size; k++) put_byte(d, (uint8_t)text[i + k], out);
    }
    return;
  }
  int byte = token_byte(text, n);
  if (byte >= 0) {
    if (byte != ' ' || d->started || !t->drop_first_space) put_byte(d, (uint8_t)byte, out);
    d->started = true;
    return;
  }
  for (size_t i = 0; i < n; i += size) {
    bool space = n - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0; // U+2581
    size = space ? 3 : 1;
    char c = space ? ' ' : text[i];
    bool dropped = c == ' ' && !d->started && t->drop_first_space;
    if (!dropped) put_byte(d, (uint8_t)c, out);
    d->started = true;
  }
}
//< detokenize

/*: ## Chat

A prompt for an instruct model is wrapped the way its training data was; `vocab.c` found out which way.
ChatML, with the system message that the template quotes, if it quotes one:

    <|im_start|>system⏎You are a helpful …<|im_end|>⏎<|im_start|>user⏎PROMPT<|im_end|>⏎<|im_start|>assistant⏎

Llama 3. (The template of 3.1 and 3.2 also writes a system message with the date of the model's
knowledge and today's. We leave it out: the answer would depend on the day.)

    <|begin_of_text|><|start_header_id|>user<|end_header_id|>⏎⏎PROMPT<|eot_id|>…assistant<|end_header_id|>⏎⏎

The prompt is encoded as plain text: a special token typed into it stays the characters that it is
written with. :*/
//> chat_encode
static int put_special(const Tokenizer *t, const char *text, int32_t **ids, Error *e) {
  int32_t id = vocab_find(&t->vocab, text, strlen(text));
  if (id < 0) return fail(e, EXIT_INPUT, "%s: the vocabulary has no %s", t->file, text);
  if (check_id(t, id, e) < 0) return -1;
  arrput(*ids, id);
  return 0;
}

// `head` and the text are one text to the tokenizer.
static int put_plain(const Tokenizer *t, const char *head, const char *text, size_t bytes,
                     int32_t **ids, Error *e) {
  char *both = NULL;
  text_append(&both, head, strlen(head));
  text_append(&both, text, bytes);
  int r = encode(t, both, arrlenu(both), false, ids, e);
  arrfree(both);
  return r;
}

static int chat_ml_turn(const Tokenizer *t, const char *head, const char *text, size_t bytes,
                        int32_t **ids, Error *e) {
  if (put_special(t, "<|im_start|>", ids, e) < 0 || put_plain(t, head, text, bytes, ids, e) < 0 ||
      put_special(t, "<|im_end|>", ids, e) < 0)
    return -1;
  return put_plain(t, "\n", "", 0, ids, e);
}

static int llama3_header(const Tokenizer *t, const char *role, int32_t **ids, Error *e) {
  if (put_special(t, "<|start_header_id|>", ids, e) < 0 || put_plain(t, role, "", 0, ids, e) < 0)
    return -1;
  return put_special(t, "<|end_header_id|>", ids, e);
}

// Llama 3's template trims the prompt, as Python's strip() does.
static void trim(const char **text, size_t *bytes) {
  size_t size;
  for (int32_t c;
       *bytes && (is_space(c = char_at(*text, *bytes, &size)) || (c >= 0x1c && c <= 0x1f));
       *bytes -= size)
    *text += size;
  for (int32_t c;
       *bytes && (is_space(c = char_before(*text, *bytes, &size)) || (c >= 0x1c && c <= 0x1f));)
    *bytes -= size;
}

static int chat_ids(const Tokenizer *t, const char *prompt, size_t bytes, int32_t **ids, Error *e) {
  if (t->chat == CHAT_ML) {
    for (ptrdiff_t i = 0; t->chat_front && i < arrlen(t->front); i++) arrput(*ids, t->front[i]);
    const char *system = t->chat_system;
    if (system && chat_ml_turn(t, "system\n", system, strlen(system), ids, e) < 0) return -1;
    if (chat_ml_turn(t, "user\n", prompt, bytes, ids, e) < 0) return -1;
    return put_special(t, "<|im_start|>", ids, e) < 0 ? -1
                                                      : put_plain(t, "assistant\n", "", 0, ids, e);
  }
  trim(&prompt, &bytes);
  if (put_special(t, "<|begin_of_text|>", ids, e) < 0 || llama3_header(t, "user", ids, e) < 0 ||
      put_plain(t, "\n\n", prompt, bytes, ids, e) < 0 || put_special(t, "<|eot_id|>", ids, e) < 0)
    return -1;
  return llama3_header(t, "assistant", ids, e) < 0 ? -1 : put_plain(t, "\n\n", "", 0, ids, e);
}

int chat_encode(const Tokenizer *t, const char *prompt, size_t bytes, int32_t **ids, Error *e) {
  if (t->chat == CHAT_NONE)
    return fail(e, EXIT_INPUT, "%s: no chat template of a known kind (ChatML, Llama 3)", t->file);
  size_t valid = utf8_valid(prompt, bytes);
  if (valid < bytes) // before a header shifts the offset
    return fail(e, EXIT_INPUT, "text: byte %zu of %zu (0x%02x) is not UTF-8", valid, bytes,
                (uint8_t)prompt[valid]);
  ptrdiff_t before = arrlen(*ids);
  int r = chat_ids(t, prompt, bytes, ids, e);
  if (r < 0) arrsetlen(*ids, (size_t)before);
  return r;
}
//< chat_encode
