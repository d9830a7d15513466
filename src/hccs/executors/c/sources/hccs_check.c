/* Runs every example through the model and compares all scores with the reference's. */
#include "hccs_examples.h"
#include "hccs_model.h"
#include "hccs_say.h"

int hccs_program(void) {
  static int32_t scores[HCCS_EXAMPLE_MOST_SCORES];
  uint32_t example, i, wrong = 0, counts[HCCS_MODEL_LABELS] = {0};
  for (example = 0; example < HCCS_EXAMPLES; ++example) {
    const int32_t* expected = hccs_example_scores(example);
    const uint32_t count = hccs_example_score_count(example);
    uint32_t best = 0;
    if (hccs_run_example(example, scores) != HCCS_MODEL_OK) {
      wrong += count;
      continue;
    }
    for (i = 0; i < count; ++i) wrong += scores[i] != expected[i];
    for (i = 1; i < HCCS_MODEL_LABELS; ++i) best = scores[i] > scores[best] ? i : best;
    ++counts[best];
  }
  for (i = 0; i < HCCS_MODEL_LABELS; ++i) {
    hccs_say_number(counts[i]);
    hccs_say(" x ");
    hccs_say(hccs_model_label(i));
    hccs_say(i + 1 < HCCS_MODEL_LABELS ? ", " : "\n");
  }
  hccs_say_number(HCCS_EXAMPLES);
  hccs_say(" examples, ");
  hccs_say_number(wrong);
  hccs_say(" scores differ: ");
  hccs_say(wrong == 0 ? "PASS\n" : "FAIL\n");
  return wrong != 0;
}
