/* Stands in for libcuda.so.1, of which torch's autograd engine asks one question: no device has an active context. */
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 0;
  return 0;
}
