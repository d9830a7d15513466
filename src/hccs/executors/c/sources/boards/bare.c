/* What a core without an operating system does before and after a program, whatever the board. */
#include <stddef.h>

#include "board.h"
#include "bare.h"

#define PAINT 0xA5u

extern unsigned char bss_start[], bss_end[], stack_bottom[], stack_top[]; /* of the linker script */

/* The two functions that a compiler may call by itself, also in programs without a library. */
void* memcpy(void* to, const void* from, size_t count);
void* memset(void* to, int value, size_t count);

void* memcpy(void* to, const void* from, size_t count) {
  volatile unsigned char* out = to; /* volatile: or the loop would become a call of this very function */
  const unsigned char* in = from;
  while (count-- > 0) *out++ = *in++;
  return to;
}

void* memset(void* to, int value, size_t count) {
  volatile unsigned char* out = to;
  while (count-- > 0) *out++ = (unsigned char)value;
  return to;
}

void hccs_start(void) {
  const uintptr_t here = (uintptr_t)__builtin_frame_address(0) - 128; /* this function's own part stays as it is */
  (void)memset(bss_start, 0, (size_t)(bss_end - bss_start));
  (void)memset(stack_bottom, PAINT, (size_t)(here - (uintptr_t)stack_bottom));
  hccs_stop(hccs_program());
}

uint32_t hccs_stack_used(void) {
  const unsigned char* byte = stack_bottom;
  while (byte < stack_top && *byte == PAINT) ++byte;
  return (uint32_t)(stack_top - byte);
}
