/* What a board's own file calls once its clock and its serial line run. */
#ifndef HCCS_BARE_H
#define HCCS_BARE_H

/* Zeros where C promises them, then the program, then the end. */
void hccs_start(void);

#endif
