/*: # Text in every script, from a seed

The tokenizer is compared with the reference on the strings that this file makes: words and sentences in
a dozen scripts, code, emoji, white space, control characters, marks in every order, jamo, digits, things
that look like special tokens, and every code point once. The reference's ids were made from a file that
`make_text` wrote; the test makes the strings again. :*/
#ifndef TEXT_H
#define TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// The strings that llama.cpp (MIT) tests every vocabulary with, and ours.
static const char *const fixed_texts[] = {
    "ied 4 \302\275 months",
    "F\303\274hrer",
    "",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\t\n",
    "Hello world",
    " Hello world",
    "Hello World",
    " Hello World",
    " Hello World!",
    "Hello, world!",
    " Hello, world!",
    " this is \360\237\246\231.cpp",
    "w048 7tuijk dsdfhu",
    "\320\275\320\265\321\211\320\276 \320\275\320\260 \320\221\321\212\320\273\320\263\320"
    "\260\321\200\321\201\320\272\320\270",
    "\341\236\200\341\236\266\341\236\223\341\237\213\341\236\217\341\237\202\341\236\226\341"
    "\236\267\341\236\237\341\237\201\341\236\237\341\236\242\341\236\266\341\236\205\341\236"
    "\201\341\236\233\341\236\205\341\237\201\341\236\211",
    "\360\237\232\200 (normal) \360\237\230\266\342\200\215\360\237\214\253\357\270\217 (mult"
    "iple emojis concatenated) \342\234\205 (only emoji that has its own token)",
    "Hello",
    " Hello",
    "  Hello",
    "   Hello",
    "    Hello",
    "    Hello\n    Hello",
    " (",
    "\n =",
    "' era",
    "Hello, y'all! How are you \360\237\230\201 ?\346\210\221\346\203\263\345\234\250apple"
    "\345\267\245\344\275\2341314151\345\244\251\357\275\236",
    "!!!!!!",
    "3",
    "33",
    "333",
    "3333",
    "33333",
    "333333",
    "3333333",
    "33333333",
    "333333333",
    "C\341\273\255a Vi\341\273\207t",
    " discards",
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\360\237\232\200 (normal) \360\237\230"
    "\266\342\200\215\360\237\214\253\357\270\217 (multiple emojis concatenated) \342\234\205"
    " \360\237\246\231\360\237\246\231 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3"
    "...3 \341\236\200\341\236\266\341\236\223\341\237\213\341\236\217\341\237\202\341\236"
    "\226\341\236\267\341\236\237\341\237\201\341\236\237\341\236\242\341\236\266\341\236\205"
    "\360\237\230\201 ?\346\210\221\346\203\263\345\234\250apple\345\267\245\344\275\23413141"
    "51\345\244\251\357\275\236 ------======= \320\275\320\265\321\211\320\276 \320\275\320"
    "\260 \320\221\321\212\320\273\320\263\320\260\321\200\321\201\320\272\320\270 ''''''````"
    "```\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'll"
    " make it, 'D you like some tea? We'Ve a'lL",
    "123456",
    "12\302\27534",
    "  Hello",
    "  \n  x",
    "a\r\n\r\nb",
    "\343\200\200a",
    "it'S it'\305\277 I'LL 'rE 'Ve",
    "e\314\201",
    "\341\204\222\341\205\241\341\206\253",
    "\342\204\253",
    " Vi\341\273\207t",
    "<|begin_of_text|>twice<|begin_of_text|>",
    "<s>Hello</s> <s>",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a\341\240\216b \341\240\216 c",
    "\302\205x\302\205\302\205 y",
};
enum { FIXED_TEXTS = sizeof fixed_texts / sizeof *fixed_texts };

// A string of at most TEXT_MAX bytes; more is left out, whole characters only.
enum { TEXT_MAX = 4096, RANDOM_TEXTS = 6000, SWEEP = 128 };
typedef struct Text {
  char p[TEXT_MAX + 8];
  size_t n;
} Text;

static inline uint32_t text_random(uint64_t *state, uint32_t below) { // xorshift64*
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return (uint32_t)((*state * 0x2545f4914f6cdd1du) >> 33) % below;
}

static inline void text_put(Text *t, uint32_t c) {
  if (t->n > TEXT_MAX - 4) return;
  char *p = t->p + t->n;
  if (c < 0x80) {
    p[0] = (char)c;
    t->n += 1;
  } else if (c < 0x800) {
    p[0] = (char)(0xc0 | c >> 6);
    p[1] = (char)(0x80 | (c & 63));
    t->n += 2;
  } else if (c < 0x10000) {
    p[0] = (char)(0xe0 | c >> 12);
    p[1] = (char)(0x80 | (c >> 6 & 63));
    p[2] = (char)(0x80 | (c & 63));
    t->n += 3;
  } else {
    p[0] = (char)(0xf0 | c >> 18);
    p[1] = (char)(0x80 | (c >> 12 & 63));
    p[2] = (char)(0x80 | (c >> 6 & 63));
    p[3] = (char)(0x80 | (c & 63));
    t->n += 4;
  }
}

static inline void text_puts(Text *t, const char *s) {
  size_t n = strlen(s);
  if (t->n + n > TEXT_MAX) return;
  memcpy(t->p + t->n, s, n);
  t->n += n;
}

static inline const char *text_pick(uint64_t *r, const char *const *list, uint32_t n) {
  return list[text_random(r, n)];
}
#define PICK(r, list) text_pick(r, list, sizeof list / sizeof *list)

static const char *const text_words[] = {
    "the ",
    "Hello ",
    "world",
    " token",
    "izer",
    "'s ",
    "'re",
    "'LL ",
    "don't ",
    "I'm ",
    "A",
    "a ",
    "naïve ",
    "Straße ",
    "İstanbul ",
    "Ελλάδα ",
    "привет ",
    "мир, ",
    "שלום ",
    "مرحبا ",
    "العالم ",
    "नमस्ते ",
    "दुनिया ",
    "สวัสดี",
    "ชาวโลก ",
    "你好",
    "世界",
    "こんにちは",
    "カタカナ",
    "한국어 ",
    "안녕 ",
    "Việt ",
    "Cửa ",
    "ქართული ",
    "አማርኛ ",
    "தமிழ் ",
    "বাংলা ",
    "ខ្មែរ",
    "မြန်မာ ",
    "བོད་",
    "ᏣᎳᎩ ",
    "Հայերեն ",
    "internationalization ",
    "antidisestablishmentarianism",
    ", ",
    ". ",
    "! ",
    "?",
    " - ",
    "...",
    "\n",
    "CamelCase",
    "snake_case",
    "ALLCAPS ",
    "x86_64",
    "3.14",
    "1,000,000 ",
    "2024-01-31",
    "#tag",
    "@user",
    "https://example.org/a?b=c&d=%20",
    "user@example.com ",
    "C:\\temp\\",
    "½",
    "№ 5",
    "€9.99 ",
    "ﬁne ",
    "ＦＵＬＬ",
};
static const char *const text_code[] = {
    "int ",
    "main(",
    "void) {\n",
    "  return ",
    "0;\n",
    "}\n",
    "for (int i = 0; i < n; i++)\n",
    "\t\t",
    "    ",
    "if x == y:\n",
    "def f(self):\n",
    "import os\n",
    "// comment\n",
    "/* a */",
    "# %% [md]\n",
    "x->y",
    "a[i]",
    "<<=",
    "!=",
    "&&",
    "||",
    "::",
    "{{ }}",
    "\"str\\n\"",
    "'c'",
    "`ls -l`",
    "$HOME",
    "<div class=\"x\">",
    "</div>\n",
    "{\"k\": [1, 2.5e-3, null]}",
    "SELECT * FROM t;\n",
    "\r\n",
    "0xFFu",
    "lambda x: x**2\n",
    "=>",
    "//////",
    "-----",
    "=====",
    "*****",
    "######",
    "~~~",
    "\\\\",
    "@@",
};
static const char *const text_special[] = {
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<unk>",
    "<0x41>",
    "<0x0A>",
    "<|im_start",
    "im_end|>",
    "<|",
    "|>",
    "<",
    ">",
    "< s>",
    "<|start_header_id|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<repo_name>",
    "<|reserved_special_token_5|>",
    "<empty_output>",
    "<|IM_START|>",
    "<|im_start|><|im_start|>",
    " ",
    "\n",
    "user",
    "text ",
    "\342\226\201",
};
static const char *const text_emoji[] = {
    "🙂",
    "🦙",
    "👍🏽",
    "👩‍👩‍👧‍👦",
    "👨🏿‍🚀",
    "🏳️‍🌈",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "🇩🇪",
    "🇯🇵",
    "🇩",
    "1️⃣",
    "#️⃣",
    "❤️",
    "❤",
    "☃",
    "✅",
    "😶‍🌫️",
    "\342\200\215",
    "\357\270\217",
    " ",
    "!",
    "a",
    "🫠",
    "🫨",
    "🪿",
    "🪉",
    "🫆",
};
static const uint32_t text_spaces[] = {' ',    ' ',    ' ',    ' ',    '\n',   '\n',   '\t',
                                       '\r',   0x0b,   0x0c,   0x85,   0xa0,   0x1680, 0x180e,
                                       0x2000, 0x2003, 0x2009, 0x200b, 0x200c, 0x200d, 0x2028,
                                       0x2029, 0x202f, 0x205f, 0x2060, 0x3000, 0xfeff};
// First and last code points of blocks: letters, marks and digits.
static const uint32_t text_blocks[][2] = {
    {0x41, 0x7a},       {0xa1, 0x24f},      {0x370, 0x3ff},     {0x400, 0x52f},
    {0x5d0, 0x5f2},     {0x600, 0x6ff},     {0x900, 0x97f},     {0x980, 0x9ff},
    {0xb80, 0xbff},     {0xe01, 0xe5b},     {0xf00, 0xfff},     {0x1000, 0x109f},
    {0x10a0, 0x10ff},   {0x1200, 0x137f},   {0x1780, 0x17f9},   {0x1800, 0x18aa},
    {0x1e00, 0x1fff},   {0x2010, 0x206f},   {0x2070, 0x218b},   {0x2190, 0x23ff},
    {0x2460, 0x27bf},   {0x3041, 0x30ff},   {0x3131, 0x318e},   {0x4e00, 0x9fff},
    {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfb00, 0xfdff},   {0xff01, 0xffee},
    {0x10300, 0x103ff}, {0x12000, 0x123ff}, {0x1d400, 0x1d7ff}, {0x1f300, 0x1f6ff},
    {0x1f900, 0x1faff}, {0x20000, 0x2a6df}, {0x30000, 0x323af},
};
static const uint32_t text_zeros[] = {'0',    0x660,  0x6f0,  0x966,   0x9e6,   0xe50,   0xf20,
                                      0x1040, 0x17e0, 0xff10, 0x1d7ce, 0x104a0, 0x11de0, 0x1ccf0};
static const uint32_t text_numbers[] = {0xbd,   0x2155, 0x2160, 0x2460,
                                        0x3007, 0x3021, 0x2070, 0x10107};

// Text number i. 0 <= i < FIXED_TEXTS + RANDOM_TEXTS + sweep_texts()
static inline void make_random_text(uint32_t i, Text *t) {
  uint64_t r = 0x9e3779b97f4a7c15u * (i + 1);
  uint32_t kind = i % 16, parts = 1 + text_random(&r, 60);
  // Now and then a run that goes on.
  if (text_random(&r, 100) == 0) parts = 1500;
  uint32_t from = text_blocks[text_random(&r, sizeof text_blocks / sizeof *text_blocks)][0];
  const uint32_t *block = text_blocks[text_random(&r, sizeof text_blocks / sizeof *text_blocks)];
  for (uint32_t k = 0; k < parts && t->n < TEXT_MAX - 64; k++) {
    uint32_t c, which = kind == 15 ? text_random(&r, 15) : kind;
    switch (which) {
    case 0:
    case 1:
    case 2: text_puts(t, PICK(&r, text_words)); break;
    case 3:
    case 4: text_puts(t, PICK(&r, text_code)); break;
    case 5: text_puts(t, PICK(&r, text_emoji)); break;
    case 6: // white space with a word now and then
      c = text_spaces[text_random(&r, sizeof text_spaces / sizeof *text_spaces)];
      for (uint32_t run = 1 + text_random(&r, 9); run; run--) text_put(t, c);
      if (text_random(&r, 4) == 0) text_puts(t, PICK(&r, text_words));
      break;
    case 7: // control characters
      c = text_random(&r, 0xa0);
      text_put(t, c < 0x20 || c > 0x7e || text_random(&r, 4) == 0 ? c : 0x80 + c % 0x20);
      break;
    case 8: // marks behind a base, in any order
      text_put(t, block[0] + text_random(&r, block[1] - block[0] + 1));
      for (uint32_t run = text_random(&r, 6); run; run--)
        text_put(t, text_random(&r, 8) ? 0x300 + text_random(&r, 0x70)
                                       : 0x591 + text_random(&r, 0x2d));
      break;
    case 9: // jamo, and syllables that take a final one
      c = text_random(&r, 4);
      text_put(t, c == 0   ? 0x1100 + text_random(&r, 0x13)
                  : c == 1 ? 0x1161 + text_random(&r, 0x15)
                  : c == 2 ? 0x11a7 + text_random(&r, 0x1d)
                           : 0xac00 + text_random(&r, 11172));
      break;
    case 10: // one script, spaces between
      if (text_random(&r, 6) == 0) text_put(t, ' ');
      text_put(t, block[0] + text_random(&r, block[1] - block[0] + 1));
      break;
    case 11: text_puts(t, PICK(&r, text_special)); break;
    case 12: // digits
      c = text_zeros[text_random(&r, sizeof text_zeros / sizeof *text_zeros)];
      for (uint32_t run = 1 + text_random(&r, 8); run; run--) text_put(t, c + text_random(&r, 10));
      if (text_random(&r, 5) == 0)
        text_put(t, text_numbers[text_random(&r, sizeof text_numbers / sizeof *text_numbers)]);
      if (text_random(&r, 3) == 0) text_puts(t, PICK(&r, text_words));
      break;
    case 13: // anything at all
      c = text_random(&r, 3) ? text_random(&r, 0x10000) : text_random(&r, 0x110000);
      text_put(t, c >= 0xd800 && c < 0xe000 ? ' ' : c);
      break;
    default: // one character over and over
      text_put(t, text_random(&r, 200) ? from : ' ');
      break;
    }
  }
}

static inline uint32_t sweep_texts(void) { return 0x32400 / SWEEP + 0x200 / SWEEP; }
static inline uint32_t text_count(void) { return FIXED_TEXTS + RANDOM_TEXTS + sweep_texts(); }

static inline void make_text(uint32_t i, Text *t) {
  t->n = 0;
  if (i < FIXED_TEXTS) {
    text_puts(t, fixed_texts[i]);
  } else if (i < FIXED_TEXTS + RANDOM_TEXTS) {
    make_random_text(i - FIXED_TEXTS, t);
  } else { // every code point once: to 0x32400, then those above 0xE0000
    uint32_t c = (i - FIXED_TEXTS - RANDOM_TEXTS) * SWEEP;
    if (c >= 0x32400) c += 0xe0000 - 0x32400;
    for (uint32_t k = 0; k < SWEEP; k++, c++)
      if (c < 0xd800 || c >= 0xe000) {
        text_put(t, c);
        text_put(t, 'a');
        if (k % 3 == 0) text_put(t, ' ');
        if (k % 5 == 0) text_put(t, '1');
      }
  }
}

#endif
