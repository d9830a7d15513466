/* Texts to token ids: WordPiece and byte-level BPE, with the ids of the package `tokenizers`.
 *
 * Portable C99: no library, no allocation, no floating point. The tables are written from a tokenizer.json. What a code
 * point becomes (lower case, without accents, alone, dropped) was asked of `tokenizers` when they were written. */
#ifndef HCCS_TOKENIZER_H
#define HCCS_TOKENIZER_H

#include "hccs_text.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest word that BPE can merge; longer ones are refused. Each needs four bytes of RAM. */
#ifndef HCCS_LONGEST_WORD
#define HCCS_LONGEST_WORD 1024
#endif

/* Code points of the longest word of WordPiece; longer ones are unknown. */
#ifndef HCCS_MOST_CHARACTERS
#define HCCS_MOST_CHARACTERS 100
#endif

/* What a code point is to WordPiece, and to the pattern that cuts words for BPE. */
enum {
  HCCS_DROPPED,
  HCCS_SPACE,
  HCCS_WORD,          /* part of a word: the code point plus a value */
  HCCS_LETTER,        /* part of a word: the value */
  HCCS_ALONE,         /* a word of its own: the code point plus a value */
  HCCS_UNKNOWN,       /* part of a word, in no entry of the vocabulary: the word is unknown */
  HCCS_UNKNOWN_ALONE, /* an unknown word of its own */
  HCCS_SEVERAL,       /* several code points: their number lies at `value` of the sequences, then they follow */
  HCCS_HANGUL,        /* a syllable: two or three code points, by arithmetic */
  HCCS_OTHER,         /* BPE: neither letter nor number nor space */
  HCCS_NUMBER
};

/* Runs of code points of one kind, each from `starts` (kind << 21 | first code point) to the next; a run's value is
 * values[which]. */
typedef struct {
  const uint32_t* starts;
  const uint16_t* which;
  const int32_t* values;
  const int32_t* sequences;
  uint32_t count;
} hccs_characters;

/* Words in the order of their bytes: word i has the letters from starts[i] to starts[i + 1]. */
typedef struct {
  const uint8_t* letters;
  const uint32_t* starts;
  const int32_t* ids;
  uint32_t count;
} hccs_words;

/* The token of every byte; pairs (left << 16 | right) in ascending order, their ranks, and what they become. */
typedef struct {
  const uint16_t* bytes;
  const uint32_t* pairs;
  const uint16_t* ranks;
  const uint16_t* made;
  uint32_t count;
} hccs_merges;

/* A token that is found in the text itself, with the spaces on either side that it takes. `late` ones are looked for
 * between the others. */
typedef struct {
  const char* text;
  uint32_t bytes;
  int32_t id;
  uint8_t left;
  uint8_t right;
  uint8_t late;
} hccs_special;

/* Around the texts: a token, or all tokens of a text, and their type. */
enum { HCCS_FIRST_TEXT = -1, HCCS_SECOND_TEXT = -2 };
typedef struct {
  int32_t id;
  uint8_t type;
} hccs_part;

typedef struct {
  hccs_characters characters;
  const hccs_words* words;   /* WordPiece: words, then continuations of words */
  const hccs_merges* merges; /* or byte-level BPE */
  const hccs_special* specials;
  uint32_t special_count;
  int32_t unknown;
  int prefix_space;          /* BPE puts a space in front of a text */
  const hccs_part* parts[2]; /* around one text, and around two */
  uint32_t part_counts[2];
  uint32_t longest; /* tokens in all */
} hccs_tokenizer;

/* Tokens of a text: those beyond `room` are counted alone. */
typedef struct {
  int32_t* ids;
  uint32_t room;
  uint32_t count;
  int long_word;
} hccs_tokens;

static inline void hccs_push(hccs_tokens* t, int32_t id) {
  if (t->count < t->room) t->ids[t->count] = id;
  ++t->count;
}

/* ---- UTF-8 ---- */

/* The code point at `at`, and moves past it; the text is valid. */
static inline uint32_t hccs_next(const uint8_t* text, uint32_t* at) {
  const uint8_t* t = text + *at;
  if (t[0] < 0x80) return *at += 1, t[0];
  if (t[0] < 0xe0) return *at += 2, (uint32_t)(t[0] & 0x1f) << 6 | (t[1] & 0x3f);
  if (t[0] < 0xf0) return *at += 3, (uint32_t)(t[0] & 0x0f) << 12 | (uint32_t)(t[1] & 0x3f) << 6 | (t[2] & 0x3f);
  *at += 4;
  return (uint32_t)(t[0] & 0x07) << 18 | (uint32_t)(t[1] & 0x3f) << 12 | (uint32_t)(t[2] & 0x3f) << 6 | (t[3] & 0x3f);
}

static inline uint32_t hccs_append(uint8_t* to, uint32_t c) {
  if (c < 0x80) return to[0] = (uint8_t)c, 1;
  if (c < 0x800) return to[0] = (uint8_t)(0xc0 | c >> 6), to[1] = (uint8_t)(0x80 | (c & 0x3f)), 2;
  if (c < 0x10000) {
    to[0] = (uint8_t)(0xe0 | c >> 12), to[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f)), to[2] = (uint8_t)(0x80 | (c & 0x3f));
    return 3;
  }
  to[0] = (uint8_t)(0xf0 | c >> 18), to[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
  to[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f)), to[3] = (uint8_t)(0x80 | (c & 0x3f));
  return 4;
}

/* Whether a text is UTF-8: no code point in a longer form than it needs, no half of a surrogate pair. */
static inline int hccs_is_utf8(const uint8_t* text, uint32_t bytes) {
  static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
  uint32_t at = 0, more, i, c;
  while (at < bytes) {
    const uint8_t lead = text[at];
    more = lead < 0x80 ? 0 : lead >= 0xc2 && lead < 0xe0 ? 1 : lead >= 0xe0 && lead < 0xf0 ? 2 : 3;
    if (more == 3 && (lead < 0xf0 || lead > 0xf4)) return 0;
    if (more > bytes - at - 1) return 0;
    for (i = 1; i <= more; ++i) {
      if ((text[at + i] & 0xc0) != 0x80) return 0;
    }
    c = hccs_next(text, &at);
    if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
  }
  return 1;
}

/* Unicode's White_Space. */
static inline int hccs_is_white(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The run of a code point. */
static inline uint32_t hccs_run_of(const hccs_characters* characters, uint32_t c) {
  uint32_t low = 0, high = characters->count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if ((characters->starts[middle] & 0x1fffff) <= c) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* ---- WordPiece ---- */

/* A word that is being read: its letters, its number of code points, and whether one of them is unknown. */
typedef struct {
  uint8_t letters[4 * HCCS_MOST_CHARACTERS];
  uint32_t bytes;
  uint32_t characters;
  int unknown;
} hccs_word;

/* How many words in [low, high), alike in their first `at` bytes, have a byte there below `letter`; words that end come
 * first. */
static inline uint32_t hccs_below(const hccs_words* w, uint32_t low, uint32_t high, uint32_t at, uint32_t letter) {
  while (low < high) {
    const uint32_t middle = (low + high) / 2, start = w->starts[middle] + at;
    if (start == w->starts[middle + 1] || w->letters[start] < letter) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The bytes of the longest entry that a text begins with, and its id; 0 where none is. */
static inline uint32_t hccs_longest(const hccs_words* w, const uint8_t* text, uint32_t bytes, int32_t* id) {
  uint32_t low = 0, high = w->count, at, found = 0;
  for (at = 0; at < bytes; ++at) {
    low = hccs_below(w, low, high, at, text[at]);
    high = hccs_below(w, low, high, at, (uint32_t)text[at] + 1);
    if (low == high) break;
    if (w->starts[low + 1] - w->starts[low] == at + 1) found = at + 1, *id = w->ids[low];
  }
  return found;
}

/* Writes the tokens of a word, or the unknown token where its pieces are not all in the vocabulary. */
static inline void hccs_end_word(const hccs_tokenizer* z, hccs_word* word, hccs_tokens* t) {
  const uint32_t before = t->count;
  uint32_t at = 0;
  if (word->characters == 0) return;
  if (word->characters > HCCS_MOST_CHARACTERS) word->unknown = 1;
  while (!word->unknown && at < word->bytes) {
    int32_t id = 0;
    const uint32_t bytes = hccs_longest(z->words + (at > 0), word->letters + at, word->bytes - at, &id);
    if (bytes == 0) word->unknown = 1;
    hccs_push(t, id);
    at += bytes;
  }
  if (word->unknown) {
    t->count = before;
    hccs_push(t, z->unknown);
  }
  word->bytes = word->characters = 0;
  word->unknown = 0;
}

static inline void hccs_add_letter(hccs_word* word, uint32_t c, int unknown) {
  word->unknown |= unknown;
  if (++word->characters <= HCCS_MOST_CHARACTERS) word->bytes += hccs_append(word->letters + word->bytes, c);
}

static inline void hccs_add_character(const hccs_tokenizer* z, hccs_word* word, uint32_t c, hccs_tokens* t);

/* "Hangul syllable decomposition" of the Unicode standard. */
static inline void hccs_add_syllable(const hccs_tokenizer* z, hccs_word* word, uint32_t c, hccs_tokens* t) {
  const uint32_t number = c - 0xac00, last = number % 28;
  hccs_add_character(z, word, 0x1100 + number / 588, t);
  hccs_add_character(z, word, 0x1161 + number % 588 / 28, t);
  if (last != 0) hccs_add_character(z, word, 0x11a7 + last, t);
}

static inline void hccs_add_character(const hccs_tokenizer* z, hccs_word* word, uint32_t c, hccs_tokens* t) {
  const hccs_characters* characters = &z->characters;
  const uint32_t run = hccs_run_of(characters, c), kind = characters->starts[run] >> 21;
  const int32_t value = characters->values[characters->which[run]];
  int32_t i;
  if (kind == HCCS_SPACE || kind == HCCS_ALONE || kind == HCCS_UNKNOWN_ALONE) hccs_end_word(z, word, t);
  switch (kind) {
    case HCCS_WORD:
    case HCCS_ALONE: hccs_add_letter(word, (uint32_t)((int32_t)c + value), 0); break;
    case HCCS_LETTER: hccs_add_letter(word, (uint32_t)value, 0); break;
    case HCCS_UNKNOWN:
    case HCCS_UNKNOWN_ALONE: hccs_add_letter(word, c, 1); break;
    case HCCS_SEVERAL:
      for (i = 1; i <= characters->sequences[value]; ++i) {
        hccs_add_character(z, word, (uint32_t)characters->sequences[value + i], t);
      }
      break;
    case HCCS_HANGUL: hccs_add_syllable(z, word, c, t); break;
    default: break;
  }
  if (kind == HCCS_ALONE || kind == HCCS_UNKNOWN_ALONE) hccs_end_word(z, word, t);
}

static inline void hccs_wordpiece(const hccs_tokenizer* z, const uint8_t* text, uint32_t at, uint32_t end,
                                  hccs_tokens* t) {
  hccs_word word;
  word.bytes = word.characters = 0;
  word.unknown = 0;
  while (at < end) hccs_add_character(z, &word, hccs_next(text, &at), t);
  hccs_end_word(z, &word, t);
}

/* ---- byte-level BPE ---- */

#define HCCS_NO_PAIR 0xffffu

/* Where a pair of tokens lies among the merges, or their number. */
static inline uint32_t hccs_merge_of(const hccs_merges* m, uint32_t left, uint32_t right) {
  const uint32_t pair = left << 16 | right;
  uint32_t low = 0, high = m->count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (m->pairs[middle] < pair) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < m->count && m->pairs[low] == pair ? low : m->count;
}

static inline uint16_t hccs_rank_of(const hccs_merges* m, uint32_t left, uint32_t right) {
  const uint32_t merge = hccs_merge_of(m, left, right);
  return merge == m->count ? (uint16_t)HCCS_NO_PAIR : m->ranks[merge];
}

/* The tokens of one word: of its neighbouring tokens, the pair of the lowest rank, from the left, becomes one token. */
static inline void hccs_merge_word(const hccs_tokenizer* z, int space, const uint8_t* text, uint32_t bytes,
                                   hccs_tokens* t) {
  static uint16_t ids[HCCS_LONGEST_WORD], ranks[HCCS_LONGEST_WORD]; /* of the pair that begins at each token */
  const hccs_merges* m = z->merges;
  uint32_t count = 0, i, best;
  if (bytes + (uint32_t)space > HCCS_LONGEST_WORD) {
    t->long_word = 1;
    return;
  }
  if (space) ids[count++] = m->bytes[' '];
  for (i = 0; i < bytes; ++i) ids[count++] = m->bytes[text[i]];
  for (i = 0; i + 1 < count; ++i) ranks[i] = hccs_rank_of(m, ids[i], ids[i + 1]);
  for (;;) {
    for (best = 0, i = 1; i + 1 < count; ++i) best = ranks[i] < ranks[best] ? i : best;
    if (count < 2 || ranks[best] == HCCS_NO_PAIR) break;
    ids[best] = m->made[hccs_merge_of(m, ids[best], ids[best + 1])];
    --count;
    for (i = best + 1; i < count; ++i) ids[i] = ids[i + 1], ranks[i] = ranks[i + 1];
    if (best > 0) ranks[best - 1] = hccs_rank_of(m, ids[best - 1], ids[best]);
    if (best + 1 < count) ranks[best] = hccs_rank_of(m, ids[best], ids[best + 1]);
  }
  for (i = 0; i < count; ++i) hccs_push(t, ids[i]);
}

/* The bytes of 's, 't, 're, 've, 'm, 'll or 'd at the start of a text, or 0. */
static inline uint32_t hccs_contraction(const uint8_t* text, uint32_t bytes) {
  if (bytes < 2 || text[0] != '\'') return 0;
  if (text[1] == 's' || text[1] == 't' || text[1] == 'm' || text[1] == 'd') return 2;
  if (bytes < 3) return 0;
  if (text[2] == 'e') return text[1] == 'r' || text[1] == 'v' ? 3 : 0;
  return text[1] == 'l' && text[2] == 'l' ? 3 : 0;
}

/* Words by GPT-2's pattern: contractions; a space and letters, numbers or others; spaces, of which the last one goes
 * to the word behind it. `space` stands in front of the text. */
static inline void hccs_byte_pairs(const hccs_tokenizer* z, const uint8_t* text, uint32_t at, uint32_t end, int space,
                                   hccs_tokens* t) {
  while (at < end || space) {
    uint32_t start = at, next = at, kind, last = at, spaces = 0;
    const uint32_t shortened = space ? 0 : hccs_contraction(text + at, end - at);
    if (shortened != 0) {
      hccs_merge_word(z, 0, text + at, shortened, t);
      at += shortened;
      continue;
    }
#define HCCS_KIND_AT_NEXT (z->characters.starts[hccs_run_of(&z->characters, hccs_next(text, &next))] >> 21)
    if (!space && text[at] == ' ') next = at + 1;
    at = next;
    kind = next < end ? HCCS_KIND_AT_NEXT : HCCS_SPACE;
    if (kind != HCCS_SPACE) {
      do {
        at = next;
      } while (next < end && HCCS_KIND_AT_NEXT == kind);
    } else {
      for (at = next = last = start; next < end && HCCS_KIND_AT_NEXT == HCCS_SPACE; ++spaces) last = at, at = next;
      if (at < end && spaces + (uint32_t)space > 1) at = last;
    }
#undef HCCS_KIND_AT_NEXT
    hccs_merge_word(z, space, text + start, at - start, t);
    space = 0;
  }
}

/* ---- texts ---- */

/* Tokens of the text between two tokens that it spells out itself. */
static inline void hccs_plain(const hccs_tokenizer* z, const uint8_t* text, uint32_t at, uint32_t end, hccs_tokens* t) {
  if (z->merges == NULL) {
    hccs_wordpiece(z, text, at, end, t);
  } else {
    hccs_byte_pairs(z, text, at, end, z->prefix_space && text[at] != ' ', t);
  }
}

/* The longest special token at `at`, or NULL. */
static inline const hccs_special* hccs_special_at(const hccs_tokenizer* z, const uint8_t* text, uint32_t at,
                                                  uint32_t end, uint8_t late) {
  const hccs_special* found = NULL;
  uint32_t i, k;
  for (i = 0; i < z->special_count; ++i) {
    const hccs_special* s = z->specials + i;
    if (s->late != late || s->bytes > end - at || (found != NULL && found->bytes >= s->bytes)) continue;
    for (k = 0; k < s->bytes && (uint8_t)s->text[k] == text[at + k]; ++k) continue;
    if (k == s->bytes) found = s;
  }
  return found;
}

/* Tokens of a text, the special ones that it spells out among them. */
static inline void hccs_tokenize(const hccs_tokenizer* z, const uint8_t* text, uint32_t start, uint32_t end,
                                 uint8_t late, hccs_tokens* t) {
  uint32_t at = start, next, before;
  while (start < end) {
    const hccs_special* s = at < end ? hccs_special_at(z, text, at, end, late) : NULL;
    if (at < end && s == NULL) {
      ++at;
      continue;
    }
    for (before = at; s != NULL && s->left && before > start;) { /* back over spaces, a code point at a time */
      uint32_t back = before - 1;
      while ((text[back] & 0xc0) == 0x80) --back;
      next = back;
      if (!hccs_is_white(hccs_next(text, &next))) break;
      before = back;
    }
    if (start < before && late) hccs_plain(z, text, start, before, t);
    if (start < before && !late) hccs_tokenize(z, text, start, before, 1, t);
    if (s != NULL) {
      hccs_push(t, s->id);
      at += s->bytes;
    }
    for (next = at; s != NULL && s->right && next < end && hccs_is_white(hccs_next(text, &next));) at = next;
    start = at;
  }
}

/* How many tokens of two texts are kept where both have room for `most`: the longer one loses first. */
static inline void hccs_cut_longest(uint32_t most, uint32_t* first, uint32_t* second) {
  uint32_t* shorter = *first > *second ? second : first;
  uint32_t* longer = *first > *second ? first : second;
  if (*first + *second <= most) return;
  *longer = *shorter > most || most - *shorter < *shorter ? *shorter : most - *shorter;
  if (*shorter + *longer > most) {
    *shorter = most / 2;
    *longer = most / 2 + most % 2;
  }
}

/* Reads a text into room for tokens; 0 where it is no UTF-8. */
static inline int hccs_read_one(const hccs_tokenizer* z, const char* text, uint32_t bytes, int32_t* ids, uint32_t room,
                                hccs_tokens* t) {
  t->ids = ids, t->room = room, t->count = 0, t->long_word = 0;
  if (!hccs_is_utf8((const uint8_t*)text, bytes)) return 0;
  hccs_tokenize(z, (const uint8_t*)text, 0, bytes, 0, t);
  return 1;
}

/* Reads a text, or a pair, into `ids` with the tokens around them; `others` holds the second text meanwhile. */
static inline hccs_text_status hccs_read(const hccs_tokenizer* z, const char* first, uint32_t first_bytes,
                                         const char* second, uint32_t second_bytes, int32_t* ids, int32_t* others,
                                         uint8_t* types, uint32_t* length) {
  const hccs_part* parts = z->parts[second != NULL];
  const uint32_t part_count = z->part_counts[second != NULL], texts = second == NULL ? 1 : 2;
  const uint32_t most = z->longest > part_count - texts ? z->longest - (part_count - texts) : 0;
  uint32_t i, k, lead = 0, at = 0, kept[2] = {0, 0};
  hccs_tokens t;
  while (parts[lead].id != HCCS_FIRST_TEXT) ++lead; /* the first text is read where it will stay */
  if (!hccs_read_one(z, first, first_bytes, ids + lead, most, &t)) return HCCS_TEXT_NOT_UTF8;
  if (t.long_word) return HCCS_TEXT_LONG_WORD;
  kept[0] = t.count;
  if (second != NULL && !hccs_read_one(z, second, second_bytes, others, most, &t)) return HCCS_TEXT_NOT_UTF8;
  if (t.long_word) return HCCS_TEXT_LONG_WORD;
  if (second != NULL) kept[1] = t.count;
  k = kept[0] + kept[1];
  if (second != NULL) {
    hccs_cut_longest(most, kept, kept + 1);
  } else if (kept[0] > most) {
    kept[0] = most;
  }
  for (i = 0; i < part_count; ++i) {
    const int32_t id = parts[i].id;
    const uint32_t end = at + (id == HCCS_FIRST_TEXT ? kept[0] : id == HCCS_SECOND_TEXT ? kept[1] : 1), start = at;
    for (; at < end; ++at) {
      types[at] = parts[i].type;
      if (id != HCCS_FIRST_TEXT) ids[at] = id == HCCS_SECOND_TEXT ? others[at - start] : id;
    }
  }
  *length = at;
  return kept[0] + kept[1] < k ? HCCS_TEXT_CUT : HCCS_TEXT_OK;
}

#endif
