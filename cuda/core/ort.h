// The only header that knows ONNX Runtime: thin, checked wrappers of its C interface.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <string>
#include <utility>

#include "core/table.h"

namespace ortops {

// The interface of the ONNX Runtime that called us, and its version. There can be two in one process, so objects keep
// theirs. A function that is newer than `version` must not be called.
struct Ort {
  const OrtApi* api = nullptr;
  int version = 0;        // of the interface
  int runtime_minor = 0;  // of the runtime: 31 for 1.31.1

  void check(OrtStatus* status) const {
    if (!status) return;
    const std::string message = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    throw std::runtime_error(message);
  }
};

// The newest version that we use; the library asks for the older of this and the runtime's own.
constexpr int kNewestVersion = 21;
constexpr int kOldestVersion = 18;

// An object of ONNX Runtime, released with it.
template <class T>
class Owned {
 public:
  using Release = void(ORT_API_CALL*)(T*);
  Owned(T* object, Release release) : object_(object), release_(release) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)), release_(other.release_) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (object_) release_(object_);
  }
  T* get() const { return object_; }

 private:
  T* object_;
  Release release_;
};

// Runs f; what it throws comes back as a status. Nothing is thrown into ONNX Runtime.
template <class F>
OrtStatus* guarded(const OrtApi* api, F&& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const Error& error) {
    return api->CreateStatus(ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
  } catch (...) {
    return api->CreateStatus(ORT_RUNTIME_EXCEPTION, "ortops: unknown exception");
  }
}

// An operator of the table as ONNX Runtime wants to see it: one object a row and name.
struct CustomOp : OrtCustomOp {
  CustomOp(const Ort& ort, const Row& row, std::string name, bool check_indices);

  Ort ort;
  const Row* row;
  std::string name;
  bool check_indices;
};

}  // namespace ortops
