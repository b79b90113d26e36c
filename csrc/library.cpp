// The schemas of all ops, in one place; each op's own file registers its kernels. An importable module without content, so that
// `import cfol_fast._ops` loads the library.
#include <torch/csrc/stable/library.h>

#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#if defined(CFOL_EMULATED)
#define CFOL_NAMESPACE cfol_fast_emulated
#define CFOL_INIT PyInit__emulated_ops
#else
#define CFOL_NAMESPACE cfol_fast
#define CFOL_INIT PyInit__ops
#endif

STABLE_TORCH_LIBRARY(CFOL_NAMESPACE, m) {
  m.def("pgd_start(Tensor x, float eps, Tensor? eps_each, Tensor(a!) rng, bool l2, Tensor(b!)? fault) -> Tensor");
  m.def(
      "pgd_step(Tensor(a!) adv, Tensor x, Tensor grad, float step, float eps, Tensor? step_each, Tensor? eps_each, "
      "bool l2, Tensor(b!)? fault) -> ()");
}

extern "C" PyMODINIT_FUNC CFOL_INIT(void) {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_ops", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}
