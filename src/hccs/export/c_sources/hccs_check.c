/* Runs every row of vectors.txt through the row functions and compares all outputs.
 *
 * The file holds the number of rows, then for each row: layer, head, mode, columns, length and a flag that is 1
 * when a mask follows; the logits; the mask; the expected probabilities. */
#include <stdio.h>
#include <string.h>

#include "hccs_parameters.h"

#ifdef HCCS_WIDE /* hccs_parameters.h holds two lines, or wide sums */
typedef hccs_lines head_type;
#define ROW_I16 hccs_lines_row_i16
#define ROW_U8 hccs_lines_row_u8
#else
typedef hccs_head head_type;
#define ROW_I16 hccs_softmax_row_i16
#define ROW_U8 hccs_softmax_row_u8
#endif

static const char* const mode_names[] = {"i16_div", "i16_clb", "u8_div", "u8_clb", "u8_lin"};

static int read_mode(FILE* file, hccs_mode* mode) {
  char name[16];
  size_t i;
  if (fscanf(file, "%15s", name) != 1) return 0;
  for (i = 0; i < sizeof mode_names / sizeof mode_names[0]; ++i) {
    if (strcmp(name, mode_names[i]) == 0) {
      *mode = (hccs_mode)i;
      return 1;
    }
  }
  return 0;
}

static int read_values(FILE* file, size_t count, int* values) {
  size_t i;
  for (i = 0; i < count; ++i) {
    if (fscanf(file, "%d", &values[i]) != 1) return 0;
  }
  return 1;
}

/* Outputs of one row as ints; -1 when the row function refuses. */
static int run(const head_type* theta, hccs_mode mode, const int8_t* x, size_t columns, size_t length,
               const uint8_t* valid, int* out) {
  static int16_t wide[HCCS_COLUMNS];
  static uint8_t narrow[HCCS_COLUMNS];
  const int is_u8 = mode != HCCS_I16_DIV && mode != HCCS_I16_CLB;
  const hccs_status status = is_u8 ? ROW_U8(theta, mode, x, columns, length, valid, narrow)
                                   : ROW_I16(theta, mode, x, columns, length, valid, wide);
  size_t i;
  if (status != HCCS_OK) return -1;
  for (i = 0; i < columns; ++i) out[i] = is_u8 ? narrow[i] : wide[i];
  return 0;
}

/* Number of outputs that differ, or -1 when the file is not as described above. */
static long check_row(FILE* file) {
  static int numbers[HCCS_COLUMNS], got[HCCS_COLUMNS];
  static int8_t x[HCCS_COLUMNS];
  static uint8_t valid[HCCS_COLUMNS];
  unsigned layer, head, columns, length, masked;
  hccs_mode mode = HCCS_I16_DIV;
  long wrong = 0;
  size_t i;
  if (fscanf(file, "%u %u", &layer, &head) != 2 || !read_mode(file, &mode)) return -1;
  if (fscanf(file, "%u %u %u", &columns, &length, &masked) != 3) return -1;
  if (layer >= HCCS_LAYERS || head >= HCCS_HEADS || columns > HCCS_COLUMNS) return -1;
  if (!read_values(file, columns, numbers)) return -1;
  for (i = 0; i < columns; ++i) x[i] = (int8_t)numbers[i];
  if (masked) {
    if (!read_values(file, columns, numbers)) return -1;
    for (i = 0; i < columns; ++i) valid[i] = (uint8_t)numbers[i];
  }
  if (!read_values(file, columns, numbers)) return -1;
  if (run(&hccs_theta[layer][head], mode, x, columns, length, masked ? valid : NULL, got) != 0) {
    return (long)columns;
  }
  for (i = 0; i < columns; ++i) wrong += got[i] != numbers[i];
  return wrong;
}

int main(int count, char** arguments) {
  const char* path = count > 1 ? arguments[1] : "vectors.txt";
  FILE* file = fopen(path, "r");
  unsigned long rows, i;
  long wrong = 0;
  if (file == NULL || fscanf(file, "%lu", &rows) != 1 || rows == 0) {
    fprintf(stderr, "cannot read rows from %s\n", path);
    return 2;
  }
  for (i = 0; i < rows; ++i) {
    const long found = check_row(file);
    if (found < 0) {
      fprintf(stderr, "%s is damaged at row %lu\n", path, i);
      return 2;
    }
    wrong += found;
  }
  fclose(file);
  printf("%lu rows, %ld outputs differ: %s\n", rows, wrong, wrong == 0 ? "PASS" : "FAIL");
  return wrong == 0 ? 0 : 1;
}
