// Runs every exercise. Arguments for the CUDA side: schedule (0 up, 1 down, 2 random), seed, whether blocks are ordered.
#include "exercise.h"

#include <cstring>
#include <stdexcept>

int main([[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
#if defined(CFOL_SIDE_CUDA)
  if (argc > 1) emu::order = static_cast<emu::Order>(std::atoi(argv[1]));
  if (argc > 2) emu::seed = static_cast<uint64_t>(std::atoi(argv[2]));
  if (argc > 3) emu::order_blocks = std::atoi(argv[3]) != 0;
#endif
  try {
    const char* only = std::getenv("EXERCISE_ONLY");  // the mutants look at one family of ops
    for (const exercise::Entry& entry : exercise::all()) {
      if (only != nullptr && std::strncmp(only, entry.name, std::strlen(only)) != 0) continue;
      entry.function();
      std::printf("done %s\n", entry.name);
    }
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 3;
  }
  return 0;
}
