/* A RISC-V of 32 bits without floating point, on QEMU's `virt` board: start-up, serial line, end, and the processor's
 * own counter of instructions, which counts under `-icount shift=0`. */
#include "bare.h"
#include "board.h"

#define UART_DATA (*(volatile uint8_t*)0x10000000u)
#define FINISHER (*(volatile uint32_t*)0x00100000u)

__asm__(
    ".section .vectors, \"ax\"\n"
    ".globl reset\n"
    "reset:\n"
    "  la sp, stack_top\n"
    "  la t0, fault\n"
    "  .option push\n"
    "  .option arch, +zicsr\n"
    "  csrw mtvec, t0\n"
    "  .option pop\n"
    "  tail hccs_start\n"
    ".balign 4\n"
    "fault:\n"
    "  li a0, 1\n"
    "  tail hccs_stop\n"
    ".text\n");

void hccs_put(char character) { UART_DATA = (uint8_t)character; }

void hccs_stop(int failed) {
  FINISHER = failed ? 0x13333u : 0x5555u;
  for (;;) {
  }
}

uint32_t hccs_instructions(void) {
  uint32_t count;
  __asm__ volatile(
      ".option push\n"
      ".option arch, +zicsr\n"
      "csrr %0, minstret\n"
      ".option pop"
      : "=r"(count));
  return count;
}
