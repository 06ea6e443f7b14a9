// An expression as CUDA code of its own, compiled by NVRTC when a call of its kind (types, how the inputs lie) first
// runs, which is before any graph is captured. Processes keep what they have compiled.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "ops/elementwise/geometry.h"
#include "vendor/library.h"

namespace ortops::elementwise {

#if CUDART_VERSION < 12080  // before, the runtime could not load what was compiled

bool run_compiled(const Program&, const Layout&, const std::vector<const void*>&, void*, Context&) { return false; }

#else
namespace {

// --- NVRTC

struct Nvrtc {
  using Handle = struct Program_*;
  int (*version)(int*, int*);
  int (*create)(Handle*, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile)(Handle, int, const char* const*);
  int (*binary_size)(Handle, size_t*);
  int (*binary)(Handle, char*);
  int (*log_size)(Handle, size_t*);
  int (*log)(Handle, char*);
  int (*destroy)(Handle*);

  // Null where the library is absent.
  static const Nvrtc* get() {
    static const Nvrtc* found = open();
    return found;
  }

 private:
  static const Nvrtc* open() {
    try {
      void* library = vendor::open_library(vendor::cuda_sonames("libnvrtc.so"), "ORTOPS_NVRTC", "nvidia-cuda-nvrtc");
      auto nvrtc = std::make_unique<Nvrtc>();
      vendor::load_symbol(library, "nvrtcVersion", nvrtc->version);
      vendor::load_symbol(library, "nvrtcCreateProgram", nvrtc->create);
      vendor::load_symbol(library, "nvrtcCompileProgram", nvrtc->compile);
      vendor::load_symbol(library, "nvrtcGetCUBINSize", nvrtc->binary_size);
      vendor::load_symbol(library, "nvrtcGetCUBIN", nvrtc->binary);
      vendor::load_symbol(library, "nvrtcGetProgramLogSize", nvrtc->log_size);
      vendor::load_symbol(library, "nvrtcGetProgramLog", nvrtc->log);
      vendor::load_symbol(library, "nvrtcDestroyProgram", nvrtc->destroy);
      return nvrtc.release();
    } catch (const std::exception&) {
      return nullptr;
    }
  }
};

// The device code for one architecture; empty where it does not compile.
std::string compiled(const Nvrtc& nvrtc, const std::string& source, const DeviceProperties& device) {
  Nvrtc::Handle program = nullptr;
  if (nvrtc.create(&program, source.c_str(), "elementwise.cu", 0, nullptr, nullptr)) return {};
  const std::string architecture =
      "--gpu-architecture=sm_" + std::to_string(device.major) + std::to_string(device.minor);
  const char* options[] = {architecture.c_str(), "--std=c++17"};
  std::string binary;
  size_t size = 0;
  if (nvrtc.compile(program, 2, options) == 0) {
    if (nvrtc.binary_size(program, &size) == 0) {
      binary.resize(size);
      if (nvrtc.binary(program, binary.data())) binary.clear();
    }
  } else if (std::getenv("ORTOPS_ELEMENTWISE") && nvrtc.log_size(program, &size) == 0) {
    std::string log(size, '\0');
    nvrtc.log(program, log.data());
    std::fprintf(stderr, "ortops: %s\n%s\n", log.c_str(), source.c_str());
  }
  nvrtc.destroy(&program);
  return binary;
}

// --- the source

// What takes the place of the headers of the C++ library.
constexpr char kPrelude[] = R"ortops(
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#define INT64_MAX 0x7fffffffffffffffLL
#define INT64_MIN (-INT64_MAX - 1)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define ORTOPS_HOST_DEVICE __device__ __forceinline__
namespace ortops {
struct float16 { uint16_t bits; };
struct bfloat16 { uint16_t bits; };
namespace detail {
template <class To, class From>
__device__ __forceinline__ To bit_cast(From from) {
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
}
__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
__device__ __forceinline__ float to_float(bfloat16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) { return value; }
template <>
__device__ __forceinline__ float16 from_float<float16>(float value) {
  float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float value) {
  bfloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
}
)ortops";

constexpr char kFunctions[] =
#include "gen/elementwise_source.h"
    ;

const char* cpp_type(Type type) {
  switch (type) {
    case Type::bool_:
      return "bool";
    case Type::int8:
      return "int8_t";
    case Type::uint8:
      return "uint8_t";
    case Type::int16:
      return "int16_t";
    case Type::uint16:
      return "uint16_t";
    case Type::int32:
      return "int32_t";
    case Type::uint32:
      return "uint32_t";
    case Type::int64:
      return "int64_t";
    case Type::uint64:
      return "uint64_t";
    case Type::float16:
      return "float16";
    case Type::bfloat16:
      return "bfloat16";
    default:
      return "float";
  }
}
const char* cpp_type(Kind kind) { return kind == Kind::real_ ? "float" : kind == Kind::int_ ? "int64_t" : "bool"; }

// What a compiled kernel is specific to, besides the program.
struct Case {
  int device;
  int width;    // W
  int vectors;  // U
  int outer;    // axes but the innermost
  bool tails;   // the last vector may be incomplete
  bool small;   // all indices are below 2^31
  std::vector<Mode> modes;

  bool operator==(const Case&) const = default;
};

// One element's computation: v0, v1, .. from x0[e], x1[e], .. to y[e].
std::string body(const Program& program, const Case& kind) {
  std::ostringstream out;
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    out << "    const " << cpp_type(value.kind) << " v" << i << " = ";
    if (value.opcode == Opcode::input) {
      const Mode mode = kind.modes[value.input];
      const char* at = mode == Mode::scalar ? "[0]" : mode == Mode::once ? "[e / W]" : "[e]";
      out << "widened(x" << value.input << at << ")";
    } else if (value.opcode == Opcode::literal && value.kind == Kind::real_) {
      out << "__uint_as_float(" << detail::bit_cast<uint32_t>(static_cast<float>(value.real)) << "u)";
    } else if (value.opcode == Opcode::literal) {
      out << cpp_type(value.kind) << "(" << static_cast<uint64_t>(value.integer) << "ull)";
    } else {
      const OpcodeInfo& info = info_of(value.opcode);
      out << info.name << "<float>(";
      for (int k = 0; k < info.arity; ++k) out << (k ? ", v" : "v") << value.arguments[k];
      out << ")";
    }
    out << ";\n";
  }
  out << "    y[e] = narrowed<" << cpp_type(program.type) << ">(v" << program.values.size() - 1 << ");\n";
  return out.str();
}

// The part of the source that follows the functions.
std::string source_of(const Program& program, const Case& kind) {
  const size_t inputs = kind.modes.size();
  const int outer = std::max(1, kind.outer);
  bool has_rows = false;
  for (const Mode mode : kind.modes) has_rows = has_rows || mode == Mode::along || mode == Mode::once;
  std::ostringstream out;
  out << "using namespace ortops;\nusing namespace ortops::elementwise;\nconstexpr int W = " << kind.width
      << ", U = " << kind.vectors << ";\nconstexpr bool kTails = " << kind.tails << ", kSmall = " << kind.small
      << ";\nstruct Parameters {\n  const void* x[" << inputs
      << "];\n  void* y;\n  int64_t count;\n  Divider inner;\n  Divider sizes[" << outer << "];\n  int64_t strides["
      << inputs << "][" << outer << "];\n};\n"
      << "extern \"C\" __global__ void __launch_bounds__(" << Tuning::kThreads
      << ") run(const __grid_constant__ Parameters p) {\n  int64_t at[U], left[U];\n";
  if (has_rows) out << "  int64_t column[U], place[U][" << outer << "];\n";
  out << "#pragma unroll\n  for (int u = 0; u < U; ++u) {\n"
      << "    at[u] = ((int64_t(blockIdx.x) * U + u) * " << Tuning::kThreads << " + threadIdx.x) * W;\n"
      << "    left[u] = p.count - at[u];\n";
  if (has_rows) {
    out << "    int64_t row;\n    p.inner.divide<kSmall>(at[u], row, column[u]);\n#pragma unroll\n    for (int a = "
        << kind.outer - 1 << "; a >= 0; --a) p.sizes[a].divide<kSmall>(row, row, place[u][a]);\n";
  }
  out << "  }\n";
  for (size_t i = 0; i < inputs; ++i) {
    const char* type = cpp_type(program.inputs[i]);
    const Mode mode = kind.modes[i];
    if (mode == Mode::scalar) {
      out << "  const " << type << " x" << i << "[1] = {*static_cast<const " << type << "*>(p.x[" << i << "])};\n";
      continue;
    }
    out << "  " << type << " x" << i << "[" << (mode == Mode::once ? "U" : "U * W") << "];\n#pragma unroll\n"
        << "  for (int u = 0; u < U; ++u) {\n    int64_t offset = "
        << (mode == Mode::whole   ? "at[u]"
            : mode == Mode::along ? "column[u]"
                                  : "0")
        << ";\n";
    if (mode != Mode::whole) {
      out << "#pragma unroll\n    for (int a = 0; a < " << kind.outer << "; ++a) offset += place[u][a] * p.strides["
          << i << "][a];\n";
    }
    out << "    read<" << (mode == Mode::once ? "1" : "W, kTails") << ">(static_cast<const " << type << "*>(p.x[" << i
        << "]) + offset, left[u], x" << i << " + u" << (mode == Mode::once ? "" : " * W") << ");\n  }\n";
  }
  const char* result = cpp_type(program.type);
  out << "  " << result << " y[U * W];\n#pragma unroll\n  for (int e = 0; e < U * W; ++e) {\n"
      << body(program, kind) << "  }\n#pragma unroll\n  for (int u = 0; u < U; ++u) write<W, kTails>(static_cast<"
      << result << "*>(p.y) + at[u], left[u], y + u * W);\n}\n";
  return out.str();
}

// --- kernels

// Compiled code for a source and device, null where it does not compile. Never unloaded.
cudaKernel_t kernel_of(const std::string& source, const DeviceProperties& device) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<int, std::string>, cudaKernel_t>;
  std::lock_guard lock(mutex);
  const auto [found, made] = known.try_emplace({device.id, source}, nullptr);
  if (made) {
    const Nvrtc* nvrtc = Nvrtc::get();
    const std::string binary = nvrtc ? compiled(*nvrtc, std::string(kPrelude) + kFunctions + source, device) : "";
    cudaLibrary_t library = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // another thread may be recording a graph
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (!binary.empty() &&
        cudaLibraryLoadData(&library, binary.data(), nullptr, nullptr, 0, nullptr, nullptr, 0) == cudaSuccess) {
      if (cudaLibraryGetKernel(&found->second, library, "run") != cudaSuccess) found->second = nullptr;
    }
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (!found->second) cudaGetLastError();  // the interpreter takes its place
  }
  return found->second;
}

bool is_capturing(Context& context) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  ORTOPS_CUDA_CHECK(cudaStreamIsCapturing(stream_of(context), &status));
  return status != cudaStreamCaptureStatusNone;
}

// What one program has had compiled. A node runs few kinds of calls, so the list is short.
struct Kernels {
  std::mutex mutex;
  std::vector<std::pair<Case, cudaKernel_t>> known;
};

Kernels& kernels_of(const Program& program) {
  std::call_once(program.compiled_once, [&] { program.compiled = std::make_shared<Kernels>(); });
  return *static_cast<Kernels*>(program.compiled.get());
}

Case case_of(const Program& program, const Layout& layout, const std::vector<const void*>& xs, const void* y) {
  Case kind = {device_properties().id, 1, 4, layout.rank - 1, true, layout.count >> 31 == 0, {}};
  int smallest = bytes_of(program.type), together = 0;
  for (size_t i = 0; i < xs.size(); ++i) {
    kind.modes.push_back(mode_of(layout, i));
    if (kind.modes.back() == Mode::scalar || kind.modes.back() == Mode::once) continue;
    smallest = std::min(smallest, bytes_of(program.inputs[i]));
    together += bytes_of(program.inputs[i]);
  }
  const int width = 16 / std::max(2, smallest);
  if (takes_vectors(program, layout, xs, y, width)) {
    kind.width = width;
    kind.tails = layout.count % width != 0;
    kind.vectors = 1;
    // More for each thread while that leaves several blocks for each multiprocessor.
    const int64_t enough = int64_t(8) * device_properties().multiprocessors * Tuning::kThreads * width;
    while (kind.vectors < Tuning::kMostVectors &&
           2 * kind.vectors * width * std::max(1, together) <= Tuning::kBytesInFlight &&
           2 * kind.vectors * enough <= layout.count) {
      kind.vectors *= 2;
    }
  }
  return kind;
}

}  // namespace

bool run_compiled(const Program& program, const Layout& layout, const std::vector<const void*>& xs, void* y,
                  Context& context) {
  Case kind = case_of(program, layout, xs, y);
  Kernels& kernels = kernels_of(program);
  cudaKernel_t kernel = nullptr;
  {
    std::lock_guard lock(kernels.mutex);
    const auto found = std::find_if(kernels.known.begin(), kernels.known.end(),
                                    [&](const auto& entry) { return entry.first == kind; });
    if (found != kernels.known.end()) {
      kernel = found->second;
    } else if (!is_capturing(context)) {
      kernel = kernel_of(source_of(program, kind), device_properties());
      kernels.known.emplace_back(kind, kernel);
    }
  }
  if (!kernel) return false;
  // The parameters as the source declares them.
  const size_t outer = std::max(1, kind.outer), inputs = xs.size();
  std::vector<int64_t> words;
  const auto append = [&](const auto& value) {
    static_assert(sizeof(value) % 8 == 0);
    words.resize(words.size() + sizeof(value) / 8);
    std::memcpy(words.data() + words.size() - sizeof(value) / 8, &value, sizeof(value));
  };
  words.reserve(inputs * (1 + outer) + 2 + 2 * (1 + outer));
  for (const void* x : xs) append(x);
  append(y);
  append(layout.count);
  append(divider(layout.sizes[layout.rank - 1]));
  for (size_t axis = 0; axis < outer; ++axis) append(divider(kind.outer ? layout.sizes[axis] : 1));
  for (size_t i = 0; i < inputs; ++i) {
    for (size_t axis = 0; axis < outer; ++axis) append(kind.outer ? layout.strides[i][axis] : int64_t(0));
  }
  const int64_t per_block = int64_t(kind.width) * kind.vectors * Tuning::kThreads;
  launch(kernel, dim3(narrow((layout.count + per_block - 1) / per_block)), dim3(Tuning::kThreads), context,
         words.data());
  return true;
}

#endif

}  // namespace ortops::elementwise
