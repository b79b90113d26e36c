// Which device and stream an op takes: the struct Cuda of tensor.h as it is compiled for a GPU, on a tensor of device 3.
// The functions of torch's C interface that it calls are stand-ins, so that no GPU and no libtorch is needed.
#define CFOL_WITH_CUDA
#include <cstdio>

#include "tensor.h"

namespace {
int32_t current_device = 0, asked_for_stream = -1;
int streams[8];  // the native handle of device d's stream is the address of streams[d]
}  // namespace

extern "C" {
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle, int32_t* index) { return *index = 3, 0; }
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle) { return 0; }
AOTITorchError aoti_torch_create_device_guard(int32_t index, DeviceGuardHandle* guard) {
  current_device = index;
  *guard = reinterpret_cast<DeviceGuardHandle>(&current_device);
  return 0;
}
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle) { return current_device = 0, 0; }
AOTITorchError aoti_torch_get_current_stream(int32_t index, StreamHandle* stream) {
  asked_for_stream = index;
  *stream = reinterpret_cast<StreamHandle>(&streams[index]);
  return 0;
}
const char* torch_exception_get_what() { return ""; }
const char* torch_exception_get_what_without_backtrace() { return ""; }
AOTITorchError aoti_torch_delete_stream(StreamHandle) { return 0; }
AOTITorchError torch_stream_native_handle(StreamHandle stream, void** handle) { return *handle = stream, 0; }
}

int main() {
  const cfol::Tensor tensor(reinterpret_cast<AtenTensorHandle>(&streams[0]));
  int inside = -1;
  bool right_stream = false;
  {
    const cfol::Cuda device(tensor);
    inside = current_device;
    right_stream = device.stream == &streams[3];
  }
  std::printf("device %d, stream of device %d%s, afterwards device %d\n", inside, asked_for_stream,
              right_stream ? "" : " lost", current_device);
}
