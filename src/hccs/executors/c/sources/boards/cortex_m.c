/* A Cortex-M3 or M4 on Arm's MPS2 board, application notes 385 and 386, as QEMU has it: start-up, serial line, end, and
 * a counter of instructions. Under `-icount shift=0` an instruction takes a nanosecond, so that a tick of the 25 MHz
 * clock is 40. */
#include "bare.h"
#include "board.h"

#define REGISTER(address) (*(volatile uint32_t*)(address))
#define UART_DATA REGISTER(0x40004000u)
#define UART_STATE REGISTER(0x40004004u)
#define UART_CONTROL REGISTER(0x40004008u)
#define UART_DIVIDER REGISTER(0x40004010u)
#define SYSTICK_CONTROL REGISTER(0xE000E010u)
#define SYSTICK_RELOAD REGISTER(0xE000E014u)
#define SYSTICK_VALUE REGISTER(0xE000E018u)
#define SYSTICK_MASK 0xFFFFFFu
#define INSTRUCTIONS_PER_TICK 40u

extern uint32_t stack_top[];
void reset(void);

/* The stack's top and what to run at a reset; any fault ends the program. */
static void fault(void) { hccs_stop(1); }

__attribute__((section(".vectors"), used)) static const struct {
  uint32_t* stack;
  void (*handlers[15])(void);
} vectors = {stack_top,
             {reset, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault}};

void reset(void) {
  UART_DIVIDER = 16;
  UART_CONTROL = 1;
  SYSTICK_RELOAD = SYSTICK_MASK;
  SYSTICK_VALUE = 0;
  SYSTICK_CONTROL = 5; /* on, from the processor's clock */
  hccs_start();
}

void hccs_put(char character) {
  while (UART_STATE & 1u) {
  }
  UART_DATA = (uint8_t)character;
}

void hccs_stop(int failed) {
  /* Semihosting: SYS_EXIT, with "the application has ended" or "an internal error". */
  register uint32_t operation __asm__("r0") = 0x18;
  register uint32_t reason __asm__("r1") = failed ? 0x20024u : 0x20026u;
  __asm__ volatile("bkpt 0xAB" : : "r"(operation), "r"(reason) : "memory");
  for (;;) {
  }
}

uint32_t hccs_instructions(void) {
  static uint32_t ticks, last; /* the counter starts at 0 and goes on with its highest value */
  const uint32_t now = SYSTICK_VALUE;
  ticks += (last - now) & SYSTICK_MASK; /* it counts down */
  last = now;
  return ticks * INSTRUCTIONS_PER_TICK;
}
