// NVIDIA's libraries are found at run time, so that ours loads where they are absent and uses the copy that the
// process has already (PyTorch's, ONNX Runtime's, the system's) where there is one.
#pragma once

#include <string>
#include <vector>

namespace ortops::vendor {

// `stem`.13 and `stem`.12, that of the CUDA runtime which the process has loaded first.
std::vector<std::string> cuda_sonames(const std::string& stem);

// A handle for dlsym. Tried in this order: the file named by the environment variable, a copy that is loaded, the
// dynamic loader's search (which includes the RUNPATH of the library that this code is in). Never closed: other users
// of the process may have found it through us. Throws what was tried and `package`, the pip package to install.
void* open_library(const std::vector<std::string>& sonames, const char* variable, const char* package);

void* find_symbol(void* library, const char* name);

template <class Function>
void load_symbol(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(find_symbol(library, name));
}

}  // namespace ortops::vendor
