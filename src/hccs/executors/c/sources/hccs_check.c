/* Runs every example through the model and compares all values of its answers with the reference's. */
#include "hccs_examples.h"
#include "hccs_model.h"
#include "hccs_say.h"

#ifdef HCCS_MODEL_LABELS
#define DIFFER " scores differ: "

/* How often each label is the answer. */
static void say_labels(const uint32_t* counts) {
  uint32_t i;
  for (i = 0; i < HCCS_MODEL_LABELS; ++i) {
    hccs_say_number(counts[i]);
    hccs_say(" x ");
    hccs_say(hccs_model_label(i));
    hccs_say(i + 1 < HCCS_MODEL_LABELS ? ", " : "\n");
  }
}
#else
#define DIFFER " values differ: "
#endif

int hccs_program(void) {
  static hccs_example_value values[HCCS_EXAMPLE_MOST_VALUES];
  uint32_t example, i, wrong = 0;
#ifdef HCCS_MODEL_LABELS
  uint32_t counts[HCCS_MODEL_LABELS] = {0};
#endif
  for (example = 0; example < HCCS_EXAMPLES; ++example) {
    const hccs_example_value* expected = hccs_example_values(example);
    const uint32_t count = hccs_example_value_count(example);
    if (hccs_run_example(example, values) != HCCS_MODEL_OK) {
      wrong += count;
      continue;
    }
    for (i = 0; i < count; ++i) wrong += values[i] != expected[i];
#ifdef HCCS_MODEL_LABELS
    {
      uint32_t best = 0;
      for (i = 1; i < HCCS_MODEL_LABELS; ++i) best = values[i] > values[best] ? i : best;
      ++counts[best];
    }
#endif
  }
#ifdef HCCS_MODEL_LABELS
  say_labels(counts);
#endif
  hccs_say_number(HCCS_EXAMPLES);
  hccs_say(" examples, ");
  hccs_say_number(wrong);
  hccs_say(DIFFER);
  hccs_say(wrong == 0 ? "PASS\n" : "FAIL\n");
  return wrong != 0;
}
