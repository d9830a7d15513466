/* What a program of this folder needs of the machine it runs on: a place to write to, and a way to stop. */
#ifndef HCCS_BOARD_H
#define HCCS_BOARD_H

#include <stdint.h>

void hccs_put(char character);
void hccs_stop(int failed);

/* Instructions that have run, modulo 2^32, where the machine counts them; 0 elsewhere. */
uint32_t hccs_instructions(void);

/* The program itself: 0 for success. */
int hccs_program(void);

/* Bytes of the stack that the program has used so far; 0 where nobody knows. */
uint32_t hccs_stack_used(void);

#endif
