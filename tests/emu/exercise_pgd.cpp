#include "../../csrc/pgd.h"

#include "exercise.h"

// An example of 3 x 341 elements, 5 of them: more than one block; 5,115 is three more than a multiple of four, so that a
// wide access too many is seen.
EXERCISE(pgd) {
  for (const bool channels_last : {false, true}) {
    for (const bool l2 : {false, true}) {
      const cfol::ImageLayout layout{5, 3, 341, channels_last};
      const cfol::BatchPart part{7, 20};
      const size_t n = static_cast<size_t>(layout.batch * layout.per_example());
      std::vector<float> x(n, 0.5f), adv(n), grad(n, 1.0f), each(5, 0.1f);
      // faults of many threads at once: the fault word is shared
      each[1] = -1.0f;
      cfol::RngState rng{42, 7};
      int32_t fault = 0;
      RUN(pgd_start, x.data(), adv.data(), layout, part, cfol::PerExample{0.1f, nullptr}, &rng, l2, &fault);
      RUN(pgd_step, adv.data(), x.data(), grad.data(), layout, cfol::PerExample{0.01f, nullptr},
          cfol::PerExample{0.1f, nullptr}, l2, &fault);
      RUN(pgd_step, adv.data(), x.data(), grad.data(), layout, cfol::PerExample{0.01f, nullptr},
          cfol::PerExample{0.0f, each.data()}, l2, &fault);
      RUN(pgd_start, x.data(), adv.data(), layout, part, cfol::PerExample{0.0f, each.data()}, &rng, l2, &fault);
    }
  }
  // Each of the three alone is not aligned for a wide access.
  for (const int which : {0, 1, 2}) {
    const cfol::ImageLayout layout{1, 1, 600, false};
    std::vector<float> adv(601), x(601, 0.5f), grad(601, 1.0f);
    RUN(pgd_step, adv.data() + (which == 0), x.data() + (which == 1), grad.data() + (which == 2), layout,
        cfol::PerExample{0.01f, nullptr}, cfol::PerExample{0.1f, nullptr}, false, nullptr);
  }
#if !defined(CFOL_SIDE_CUDA)  // large enough for two CPU threads; the emulator would take minutes
  std::vector<float> x(1 << 17, 0.5f), adv(1 << 17), grad(1 << 17, -1.0f);
  cfol::RngState rng{1, 0};
  const cfol::ImageLayout layout{2, 1, 1 << 16, false};
  const cfol::BatchPart part{0, 2};
  RUN(pgd_start, x.data(), adv.data(), layout, part, cfol::PerExample{0.1f, nullptr}, &rng, false, nullptr);
  RUN(pgd_step, adv.data(), x.data(), grad.data(), layout, cfol::PerExample{0.01f, nullptr}, cfol::PerExample{0.1f, nullptr},
      false, nullptr);
#endif
}
