/* The choice of the next token in integers: docs/spec.md, "Choosing a token". C99, and C++; no memory, no float. */
#ifndef HCCS_SAMPLE_H
#define HCCS_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#define HCCS_OCTAVES 28 /* after so many there is no weight */

/* How a token is drawn. `powers` is round(2^28 * 2^(-j / 1024)), 1024 of them. */
typedef struct {
  const uint32_t* powers;
  uint32_t factor, shift; /* of a distance between scores to steps */
  uint32_t top_k;         /* 0: all */
  uint32_t share;         /* top_p in 65536ths, from 1 on */
} hccs_sampling;

/* What the draws at a temperature, in 65536ths and not 0, take; `factor` and `shift` are the model's. */
static inline hccs_sampling hccs_sampling_at(const uint32_t* powers, uint32_t factor, int32_t shift,
                                             uint32_t temperature, uint32_t top_k, uint32_t share) {
  hccs_sampling how;
  uint64_t R = ((uint64_t)factor << 32) / temperature;
  int32_t r = shift + 16;
  for (; R >> 31; R >>= 1) --r;
  for (; r > 62; R >>= 1) --r;
  how.powers = powers;
  how.factor = r < 1 ? 0x7fffffffu : (uint32_t)R;
  how.shift = r < 1 ? 1u : (uint32_t)r;
  how.top_k = top_k;
  how.share = share;
  return how;
}

/* 64 bits by Philox 4x32-10. */
static inline uint64_t hccs_random(uint64_t seed, uint64_t position) {
  uint32_t a = (uint32_t)position, b = (uint32_t)(position >> 32), c = 0, d = 0;
  uint32_t k = (uint32_t)seed, l = (uint32_t)(seed >> 32), i;
  for (i = 0; i < 10; ++i, k += 0x9E3779B9u, l += 0xBB67AE85u) {
    const uint64_t first = (uint64_t)0xD2511F53u * a, second = (uint64_t)0xCD9E8D57u * c;
    a = (uint32_t)(second >> 32) ^ b ^ k;
    b = (uint32_t)second;
    c = (uint32_t)(first >> 32) ^ d ^ l;
    d = (uint32_t)first;
  }
  return (uint64_t)b << 32 | a;
}

/* floor(x * y / 2^64) */
static inline uint64_t hccs_upper_product(uint64_t x, uint64_t y) {
  const uint64_t low = (uint64_t)(uint32_t)x * (uint32_t)y;
  const uint64_t a = (x >> 32) * (uint32_t)y + (low >> 32), b = (uint64_t)(uint32_t)x * (y >> 32) + (uint32_t)a;
  return (x >> 32) * (y >> 32) + (a >> 32) + (b >> 32);
}

/* The first of the largest scores. */
static inline uint32_t hccs_largest(const int32_t* scores, uint32_t count) {
  int32_t most = scores[0];
  uint32_t i;
  for (i = 1; i < count; ++i) most = scores[i] > most ? scores[i] : most;
  for (i = 0; scores[i] != most; ++i) {
  }
  return i;
}

/* The largest distance from the largest score that is fewer than `end` steps. */
static inline uint32_t hccs_reach(const hccs_sampling* how, uint64_t end) {
  uint64_t most;
  if (how->factor == 0 || how->shift > 48) return 0xffffffffu; /* too far: steps themselves are looked at */
  most = ((end << how->shift) - ((uint64_t)1 << (how->shift - 1)) - 1) / how->factor;
  return most > 0xffffffffu ? 0xffffffffu : (uint32_t)most;
}

static inline uint64_t hccs_steps(const hccs_sampling* how, uint32_t distance) {
  return ((uint64_t)distance * how->factor + ((uint64_t)1 << (how->shift - 1))) >> how->shift;
}

static inline uint64_t hccs_weight(const hccs_sampling* how, uint64_t steps) {
  return steps >> 10 < HCCS_OCTAVES ? how->powers[steps & 1023] >> (steps >> 10) : 0;
}

/* The tokens of fewer steps than `steps` are drawn from, and so many that have just these. */
typedef struct {
  uint64_t steps;
  uint32_t ties;
} hccs_cut;

/* The cut at the token, in the order of steps, at which `tokens` of them or the weight `wanted` is reached: a digit of
 * its steps in each pass, octave, 32nd and 1024th of one. Tokens beyond `reach` are not seen. `weight` receives the
 * weight of all tokens up to it. */
static inline hccs_cut hccs_cut_at(const int32_t* scores, uint32_t count, int32_t most, const hccs_sampling* how,
                                   uint32_t reach, uint64_t tokens, uint64_t wanted, uint64_t* weight) {
  static const uint32_t bits[3] = {10, 5, 0};
  uint64_t prefix = 0, seen = 0, ties = 0;
  uint32_t level, digit, i;
  hccs_cut cut;
  *weight = 0;
  for (level = 0; level < 3; ++level) {
    uint64_t sums[32] = {0};
    uint32_t counts[32] = {0};
    for (i = 0; i < count; ++i) {
      const uint32_t distance = (uint32_t)most - (uint32_t)scores[i];
      uint64_t steps;
      if (distance > reach) continue;
      steps = hccs_steps(how, distance);
      if (level ? steps >> (bits[level] + 5) != prefix : steps >> 10 >= HCCS_OCTAVES) continue;
      digit = (uint32_t)(steps >> bits[level]) & 31;
      sums[digit] += hccs_weight(how, steps);
      ++counts[digit];
    }
    for (digit = 0; digit < 31; ++digit) {
      if (seen + counts[digit] >= tokens || *weight + sums[digit] >= wanted) break;
      if (level == 0 && digit + 1 == HCCS_OCTAVES) break; /* all tokens are fewer than these */
      seen += counts[digit];
      *weight += sums[digit];
    }
    prefix = prefix << 5 | digit;
    reach = hccs_reach(how, (prefix + 1) << bits[level]);
    if (level == 2) {
      const uint64_t each = hccs_weight(how, prefix), missing = wanted > *weight ? wanted - *weight : 0;
      ties = missing / each + (missing % each != 0);
      ties = ties < 1 ? 1 : ties;
      ties = ties > tokens - seen ? tokens - seen : ties;
      ties = ties > counts[digit] ? counts[digit] : ties;
      *weight += ties * each;
    }
  }
  cut.steps = prefix;
  cut.ties = (uint32_t)ties;
  return cut;
}

/* The token at `position` of the text that `seed` names, from the scores before it; NULL: the first of the largest. At
 * most 2^20 scores. */
static inline uint32_t hccs_sample(const int32_t* scores, uint32_t count, const hccs_sampling* how, uint64_t seed,
                                   uint64_t position) {
  const uint32_t best = hccs_largest(scores, count);
  const int32_t most = scores[best];
  const uint64_t all = (uint64_t)1 << 62;
  hccs_cut cut = {HCCS_OCTAVES << 10, 0};
  uint64_t total = 0, drawn;
  uint32_t reach, i;
  if (how == NULL) return best;
  reach = hccs_reach(how, HCCS_OCTAVES << 10);
  if (how->top_k != 0 && how->top_k < count) {
    cut = hccs_cut_at(scores, count, most, how, reach, how->top_k, all, &total);
    reach = hccs_reach(how, cut.steps + 1);
  } else {
    for (i = 0; i < count; ++i) {
      const uint32_t distance = (uint32_t)most - (uint32_t)scores[i];
      if (distance <= reach) total += hccs_weight(how, hccs_steps(how, distance));
    }
  }
  if (how->share < 65536) {
    /* Of the tokens up to the first cut the second, which lies no later. */
    const uint64_t wanted = (total * how->share + 65535) >> 16, tokens = how->top_k != 0 ? how->top_k : count;
    cut = hccs_cut_at(scores, count, most, how, reach, tokens, wanted, &total);
    reach = hccs_reach(how, cut.steps + 1);
  }
  drawn = hccs_upper_product(hccs_random(seed, position), total);
  for (i = 0; i < count; ++i) {
    const uint32_t distance = (uint32_t)most - (uint32_t)scores[i];
    uint64_t steps, weight;
    if (distance > reach) continue;
    steps = hccs_steps(how, distance);
    if (steps > cut.steps || (steps == cut.steps && cut.ties == 0)) continue;
    cut.ties -= steps == cut.steps;
    weight = hccs_weight(how, steps);
    if (drawn < weight) return i;
    drawn -= weight;
  }
  return best; /* never: the weights add up to more than was drawn */
}

#endif
