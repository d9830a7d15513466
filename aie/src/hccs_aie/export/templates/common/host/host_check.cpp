// Runs every tile's share on this machine and compares it with the reference's probabilities.
#include <cstdio>
#include <fstream>
#include <vector>

#include "hccs_parameters.hpp"

using probability = hccs::output<hccs::layer::selected>::type;

template <typename T>
static bool read(const char *path, T *into, std::size_t count) {
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char *>(into), std::streamsize(count * sizeof(T)));
    return bool(file);
}

int main() {
    constexpr std::size_t share = hccs::layer::rows_per_tile * hccs::layer::columns;
    constexpr std::size_t count = share * hccs::layer::tiles;
    static hccs::scratch_of<hccs::layer::theta> scratch;
    alignas(64) static int8 logits[count];
    alignas(64) static probability got[count], expected[count];
    if (!read("vectors/logits.bin", logits, count) || !read("vectors/probabilities.bin", expected, count)) {
        std::fprintf(stderr, "run this in the project folder: vectors/*.bin not found or too short\n");
        return 2;
    }
    for (unsigned t = 0; t < hccs::layer::tiles; ++t)
        hccs::softmax_tile<hccs::layer>(logits + t * share, got + t * share, t * hccs::layer::rows_per_tile,
                                        hccs::layer::rows_per_tile, scratch);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += got[i] != expected[i];
    std::printf("%zu of %zu outputs differ from the reference\n", wrong, count);
    return wrong != 0;
}
