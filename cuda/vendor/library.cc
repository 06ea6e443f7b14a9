#include "vendor/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

namespace ortops::vendor {

std::vector<std::string> cuda_sonames(const std::string& stem) {
  const bool cuda12_only =
      !dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD) && dlopen("libcudart.so.12", RTLD_NOW | RTLD_NOLOAD);
  return cuda12_only ? std::vector{stem + ".12", stem + ".13"} : std::vector{stem + ".13", stem + ".12"};
}

void* open_library(const std::vector<std::string>& sonames, const char* variable, const char* package) {
  if (const char* path = std::getenv(variable); path && *path) {
    if (void* library = dlopen(path, RTLD_NOW)) return library;
    throw std::runtime_error(std::string("cannot load the library that ") + variable + " names: " + dlerror());
  }
  for (const std::string& name : sonames)
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) return library;
  std::string tried;
  for (const std::string& name : sonames) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW)) return library;
    tried += std::string(tried.empty() ? "" : "; ") + dlerror();
  }
  throw std::runtime_error("cannot load " + sonames.front() + " (" + tried + "). Install it with 'pip install " +
                           package + "', import a package that brings it first, or set " + variable + " to its path");
}

void* find_symbol(void* library, const char* name) {
  if (void* symbol = dlsym(library, name)) return symbol;
  throw std::runtime_error(std::string("the library that was found is too old: ") + dlerror());
}

}  // namespace ortops::vendor
