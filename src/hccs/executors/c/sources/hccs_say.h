/* Words and numbers for people, one character at a time. */
#ifndef HCCS_SAY_H
#define HCCS_SAY_H

#include "boards/board.h"

static inline void hccs_say(const char* text) {
  while (*text != '\0') hccs_put(*text++);
}

static inline void hccs_say_number(uint32_t number) {
  char digits[10];
  int count = 0;
  do {
    digits[count++] = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  while (count > 0) hccs_put(digits[--count]);
}

#endif
