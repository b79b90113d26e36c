// The schemas of all ops, in one place; each op's own file registers its kernels. An importable module without content, so
// that `import cfol_fast._ops` loads the library.
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
  m.def(
      "pgd_start(Tensor x, float eps, Tensor? eps_each, Tensor(a!) rng, bool l2, Tensor(b!)? fault, int first=0, "
      "int? whole=None) -> Tensor");
  m.def(
      "pgd_step(Tensor(a!) adv, Tensor x, Tensor grad, float step, float eps, Tensor? step_each, Tensor? eps_each, "
      "bool l2, Tensor(b!)? fault) -> ()");
  m.def("input_gradient(Tensor grad, Tensor weight, Tensor? relu, int pad_h, int pad_w) -> Tensor");
  m.def("winograd(Tensor x, Tensor taps, Tensor? bias, Tensor? relu, bool rectify) -> Tensor");
  m.def("winograd_taps(Tensor weight, bool gradient) -> Tensor");
  m.def(
      "gather_augment(Tensor images, Tensor? table, Tensor idx, Tensor(a!)? rng, Tensor? parameters, int channels, "
      "int height, int width, int pad, bool crop, bool flip, float brightness, float contrast, float saturation, "
      "float degrees, int first, bool bfloat16, bool channels_last, Tensor(b!)? fault) -> Tensor");
  m.def(
      "augment_parameters(Tensor images, Tensor? table, Tensor idx, Tensor rng, int channels, int height, int width, "
      "int pad, bool crop, bool flip, float brightness, float contrast, float saturation, float degrees, int first, "
      "Tensor(a!)? fault) -> Tensor");
  m.def("exp3_distribution(Tensor w, Tensor base, float gamma) -> (Tensor p, Tensor q, Tensor cdf)");
  m.def(
      "exp3_draw(Tensor w, Tensor base, float gamma, Tensor offsets, Tensor members, Tensor(a!) rng, int n) -> "
      "(Tensor idx, Tensor y, Tensor p)");
  m.def("exp3_update(Tensor(a!) w, Tensor p, Tensor y, Tensor loss, float eta, Tensor(b!)? fault) -> ()");
  m.def("exp3_learn(Tensor(a!) w, Tensor p, Tensor tally, Tensor(b!) seen, float eta, Tensor(c!)? fault) -> ()");
  m.def("class_tally(Tensor(a!) tally, Tensor y, Tensor loss, Tensor(b!)? fault) -> ()");
  m.def("permutation(Tensor rng, int n, Tensor start, int count) -> Tensor");
  m.def("uniform(Tensor rng, int stream, int first, int n) -> Tensor");
  m.def("sum_tree_build(Tensor(a!) w) -> (Tensor tree, Tensor meta)");
  m.def("sum_tree_draw(Tensor tree, int leaves, float gamma, Tensor(a!) rng, int n) -> (Tensor idx, Tensor p)");
  m.def(
      "sum_tree_update(Tensor(a!) tree, Tensor(b!) w, Tensor(c!) meta, Tensor idx, Tensor loss, Tensor p, float eta, "
      "Tensor(d!)? fault) -> ()");
}

PyMODINIT_FUNC CFOL_INIT(void) {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_ops", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}
