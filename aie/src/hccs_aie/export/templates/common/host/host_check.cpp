// Runs every tile's share on this machine and compares it with the reference's results.
#include <cstdio>
#include <fstream>
#include <vector>

#include "hccs_parameters.hpp"

using result = hccs::layer::result;

template <typename T>
static bool read(const char *path, T *into, std::size_t count) {
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char *>(into), std::streamsize(count * sizeof(T)));
    return bool(file);
}

int main() {
    constexpr std::size_t taken = hccs::layer::in_elements, made = hccs::layer::out_elements;
    constexpr std::size_t count = made * hccs::layer::tiles;
    static hccs::tile_scratch scratch;
    alignas(64) static int8 inputs[taken * hccs::layer::tiles];
    alignas(64) static result got[count], expected[count];
    if (!read("vectors/@inputs@.bin", inputs, sizeof inputs) || !read("vectors/@outputs@.bin", expected, count)) {
        std::fprintf(stderr, "run this in the project folder: vectors/*.bin not found or too short\n");
        return 2;
    }
    for (unsigned t = 0; t < hccs::layer::tiles; ++t)
        hccs::run_tile(inputs + t * taken, got + t * made, t * hccs::layer::step, scratch);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += got[i] != expected[i];
    std::printf("%zu of %zu outputs differ from the reference\n", wrong, count);
    return wrong != 0;
}
