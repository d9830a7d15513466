/* What the model costs on a machine that counts instructions: of every operator, for the longest example, and of the
 * stack. The model is compiled in here, so that each operator is followed by a look at the counter. */
#include "boards/board.h"

static void step(uint32_t number, const char* name);
#define HCCS_STEP(number, name) step(number, name);
#include "hccs_model.c"
#include "hccs_examples.h"
#include "hccs_say.h"

#define MOST_STEPS 1024

static const char* names[MOST_STEPS];
static uint32_t instructions[MOST_STEPS], before;

static void step(uint32_t number, const char* name) {
  if (number < MOST_STEPS) {
    names[number] = name;
    instructions[number] += hccs_instructions() - before;
  }
  before = hccs_instructions();
}

int hccs_program(void) {
  static hccs_example_value values[HCCS_EXAMPLE_MOST_VALUES];
  uint32_t i, longest = 0;
  for (i = 1; i < HCCS_EXAMPLES; ++i) {
    if (hccs_example_rows(i) > hccs_example_rows(longest)) longest = i;
  }
  before = hccs_instructions();
  if (hccs_run_example(longest, values) != HCCS_MODEL_OK) return 1;
  hccs_say("rows ");
  hccs_say_number(hccs_example_rows(longest));
  hccs_say("\nstack ");
  hccs_say_number(hccs_stack_used());
  hccs_say("\narena ");
  hccs_say_number(HCCS_MODEL_ARENA_BYTES);
  hccs_put('\n');
  for (i = 0; i < MOST_STEPS; ++i) {
    if (names[i] != NULL) {
      hccs_say_number(instructions[i]);
      hccs_put(' ');
      hccs_say(names[i]);
      hccs_put('\n');
    }
  }
  return 0;
}
