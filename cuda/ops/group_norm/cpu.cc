// GroupNorm and its gradient on the CPU. The work is cut into parts: a plane of one channel, or with channels last some
// rows of all channels. Sums are taken of each channel in each part, then of each group.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "device/arrays.h"
#include "ops/group_norm/problem.h"

namespace ortops {
namespace group_norm {
namespace {

constexpr int64_t kTile = 1024;    // numbers that are converted and held at a time
constexpr int64_t kRows = 64;      // the fewest rows of a part
constexpr int64_t kMaxParts = 32;  // of an image with channels last
constexpr int64_t kGrain = 16384;  // elements worth a thread's while
constexpr int kLanes = 16;

// The numbers of each channel that an element is worked out with.
template <class Real>
struct Channel {
  Real mean, rest, rstd, scale, bias, d, along;  // rest: of the mean, that is no Real
};

// Sums of a channel: of x - mean and its square; of d_z and d_z * n.
struct Sums {
  double first = 0, second = 0;
};

template <class Real>
ORTOPS_INLINE Real derivative(Real n, Real d_y, const Channel<Real>& c, bool silu) {
  return silu ? d_y * silu_slope(n * c.scale + c.bias) : d_y;
}

// The jobs: what is done with an element of x and, in a gradient, of d_y.
template <class Real>
struct Total {
  static constexpr bool kSums = true;
  ORTOPS_INLINE void operator()(Real x, Real, const Channel<Real>& c, bool, Real& first, Real& second) const {
    const Real d = x - c.mean - c.rest;
    first += d;
    second += d * d;
  }
};
template <class Real>
struct Gradients {
  static constexpr bool kSums = true;
  ORTOPS_INLINE void operator()(Real x, Real d_y, const Channel<Real>& c, bool silu, Real& first, Real& second) const {
    const Real n = (x - c.mean) * c.rstd, d = derivative(n, d_y, c, silu);
    first += d;
    second += d * n;
  }
};
template <class Real>
struct Apply {
  static constexpr bool kSums = false;
  ORTOPS_INLINE Real operator()(Real x, Real, const Channel<Real>& c, bool silu) const {
    const Real z = (x - c.mean - c.rest) * c.rstd * c.scale + c.bias;
    return silu ? math::silu(z) : z;
  }
};
template <class Real>
struct PassBack {
  static constexpr bool kSums = false;
  ORTOPS_INLINE Real operator()(Real x, Real d_y, const Channel<Real>& c, bool silu) const {
    const Real n = (x - c.mean) * c.rstd;
    return (derivative(n, d_y, c, silu) * c.scale - c.d - n * c.along) * c.rstd;
  }
};

template <class Job, class Real>
ORTOPS_INLINE void plane_sums(const Real* x, const Real* d_y, const Channel<Real>& c, bool silu, int64_t count,
                              Sums& sums) {
  Real first[kLanes] = {}, second[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      Job()(x[i + lane], d_y[i + lane], c, silu, first[lane], second[lane]);
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) Job()(x[i], d_y[i], c, silu, first[lane], second[lane]);
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.first += first[lane];
    sums.second += second[lane];
  }
}
template <class Job, class Real>
ORTOPS_INLINE void plane_map(const Real* x, const Real* d_y, const Channel<Real>& c, bool silu, int64_t count,
                             Real* result) {
  for (int64_t i = 0; i < count; ++i) result[i] = Job()(x[i], d_y[i], c, silu);
}
// Each element its own channel.
template <class Job, class Real>
ORTOPS_INLINE void row_sums(const Real* x, const Real* d_y, const Channel<Real>* c, bool silu, int64_t count,
                            Sums* sums) {
  for (int64_t i = 0; i < count; ++i) {
    Real first = 0, second = 0;
    Job()(x[i], d_y[i], c[i], silu, first, second);
    sums[i].first += first;
    sums[i].second += second;
  }
}
template <class Job, class Real>
ORTOPS_INLINE void row_map(const Real* x, const Real* d_y, const Channel<Real>* c, bool silu, int64_t count,
                           Real* result) {
  for (int64_t i = 0; i < count; ++i) result[i] = Job()(x[i], d_y[i], c[i], silu);
}

#define ORTOPS_JOB(Job, Real)                                                                                      \
  ORTOPS_CLONES void run(Job<Real>, const Real* x, const Real* d_y, const Channel<Real>* c, bool plane, bool silu, \
                         int64_t count, Real* result, Sums* sums) {                                                \
    if constexpr (Job<Real>::kSums) {                                                                              \
      (void)result;                                                                                                \
      plane ? plane_sums<Job<Real>>(x, d_y, *c, silu, count, *sums)                                                \
            : row_sums<Job<Real>>(x, d_y, c, silu, count, sums);                                                   \
    } else {                                                                                                       \
      (void)sums;                                                                                                  \
      plane ? plane_map<Job<Real>>(x, d_y, *c, silu, count, result)                                                \
            : row_map<Job<Real>>(x, d_y, c, silu, count, result);                                                  \
    }                                                                                                              \
  }
ORTOPS_JOB(Total, float)
ORTOPS_JOB(Gradients, float)
ORTOPS_JOB(Apply, float)
ORTOPS_JOB(PassBack, float)
#undef ORTOPS_JOB

template <class T>
const Compute<T>* as_numbers(const T* from, int64_t count, Compute<T>* buffer) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return from;
  } else {
    widen(from, buffer, count);
    return buffer;
  }
}

template <class T>
struct Run {
  using Real = Compute<T>;
  const Problem<T>& p;
  Context& context;
  int64_t parts = 1;                    // of an image, with channels last
  std::vector<Channel<Real>> channels;  // [n, c]
  std::vector<Sums> sums;               // [n, c], or with channels last [n, parts, c]

  Run(const Problem<T>& p, Context& context) : p(p), context(context), channels(p.n * p.c) {
    if (p.channels_last) parts = std::clamp<int64_t>(p.s / kRows, 1, kMaxParts);
    sums.resize(p.n * p.c * parts);
    for (int64_t i = 0; i < p.n * p.c; ++i) {
      Channel<Real>& channel = channels[i];
      const int64_t c = i % p.c, group = i / p.c * p.groups + c / p.channels;
      channel.scale = p.scale ? static_cast<Real>(to_compute(p.scale[c])) : Real(1);
      channel.bias = p.bias ? static_cast<Real>(to_compute(p.bias[c])) : Real(0);
      channel.mean = p.mean ? p.mean[group] : 0;
      channel.rstd = p.rstd ? p.rstd[group] : 0;
    }
  }

  // Goes over all of x. Of the sums, those of each part begin at 0.
  template <class Job>
  void each(Job job) {
    const int64_t units = p.channels_last ? p.n * parts : p.n * p.c;
    const int64_t elements = std::max<int64_t>(1, p.n * p.c * p.s / std::max<int64_t>(units, 1));
    context.parallel_for(units, std::max<int64_t>(1, kGrain / elements), [&](int64_t first, int64_t last) {
      for (int64_t unit = first; unit < last; ++unit) {
        if (!p.channels_last) {
          each_tile(job, unit * p.s, p.s, &channels[unit], &sums[unit]);
          continue;
        }
        const int64_t image = unit / parts, part = unit % parts;
        const int64_t begin = p.s * part / parts, end = p.s * (part + 1) / parts;
        for (int64_t row = begin; row < end; ++row) {
          each_tile(job, (image * p.s + row) * p.c, p.c, &channels[image * p.c], &sums[unit * p.c]);
        }
      }
    });
  }

  template <class Job>
  void each_tile(Job job, int64_t at, int64_t count, const Channel<Real>* channel, Sums* sum) {
    Real x_buffer[kTile], d_y_buffer[kTile], result_buffer[kTile];
    for (int64_t begin = 0; begin < count; begin += kTile) {
      const int64_t some = std::min(kTile, count - begin), from = p.channels_last ? begin : 0;
      const Real* x = as_numbers(p.x + at + begin, some, x_buffer);
      const Real* d_y = p.d_y ? as_numbers(p.d_y + at + begin, some, d_y_buffer) : x;
      Real* result = result_buffer;
      if constexpr (std::is_same_v<T, Real>) result = p.result + at + begin;
      run(job, x, d_y, channel + from, !p.channels_last, p.silu, some, result, sum + from);
      if constexpr (!Job::kSums && !std::is_same_v<T, Real>) narrow(result, p.result + at + begin, some);
    }
  }

  // The sums of a channel of an image, over its parts.
  Sums channel_sums(int64_t image, int64_t c) const {
    Sums total;
    for (int64_t part = 0; part < parts; ++part) {
      const Sums& some = sums[p.channels_last ? (image * parts + part) * p.c + c : image * p.c + c];
      total.first += some.first;
      total.second += some.second;
    }
    return total;
  }

  // f(image, group, its first channel)
  template <class F>
  void each_group(F f) const {
    for (int64_t image = 0; image < p.n; ++image) {
      for (int64_t group = 0; group < p.groups; ++group) f(image, group, group * p.channels);
    }
  }
};

template <class T>
void forward(const Problem<T>& p, float* means, float* rstds, Context& context) {
  using Real = Compute<T>;
  Run<T> run(p, context);
  const double count = static_cast<double>(p.channels * p.s);
  std::vector<double> mean(p.n * p.groups);
  // About 0, then about the mean, whose own rounding the second pass sees.
  for (int pass = 0; pass < 2; ++pass) {
    std::fill(run.sums.begin(), run.sums.end(), Sums());
    run.each(Total<Real>());
    run.each_group([&](int64_t image, int64_t group, int64_t first) {
      Sums total;
      for (int64_t c = first; c < first + p.channels; ++c) {
        const Sums some = run.channel_sums(image, c);
        total.first += some.first;
        total.second += some.second;
      }
      const double rest = total.first / count;
      double& center = mean[image * p.groups + group];
      for (int64_t c = first; c < first + p.channels; ++c) {
        Channel<Real>& channel = run.channels[image * p.c + c];
        channel.mean = static_cast<Real>(center + rest);
        channel.rest = static_cast<Real>(center + rest - channel.mean);
        if (pass == 1) {
          const double variance = std::max(total.second / count - rest * rest, 0.0);
          channel.rstd =
              static_cast<Real>(1 / std::sqrt((std::isnan(total.second) || count == 0 ? NAN : variance) + p.epsilon));
        }
      }
      center += rest;
      if (pass == 1) {
        if (means) means[image * p.groups + group] = static_cast<float>(center);
        if (rstds)
          rstds[image * p.groups + group] =
              count == 0 ? NAN : static_cast<float>(run.channels[image * p.c + first].rstd);
      }
    });
  }
  run.each(Apply<Real>());
}

template <class T>
void backward(const Problem<T>& p, T* d_scale, T* d_bias, Context& context) {
  using Real = Compute<T>;
  Run<T> run(p, context);
  run.each(Gradients<Real>());
  const double count = static_cast<double>(p.channels * p.s);
  std::vector<Sums> totals(p.c);
  run.each_group([&](int64_t image, int64_t, int64_t first) {
    double d = 0, along = 0;
    for (int64_t c = first; c < first + p.channels; ++c) {
      const Sums some = run.channel_sums(image, c);
      totals[c].first += some.first;
      totals[c].second += some.second;
      d += some.first * run.channels[c].scale;
      along += some.second * run.channels[c].scale;
    }
    for (int64_t c = first; c < first + p.channels; ++c) {
      run.channels[image * p.c + c].d = static_cast<Real>(d / count);
      run.channels[image * p.c + c].along = static_cast<Real>(along / count);
    }
  });
  for (int64_t c = 0; c < p.c; ++c) {
    if (d_bias) d_bias[c] = from_compute<T>(static_cast<Real>(totals[c].first));
    if (d_scale) d_scale[c] = from_compute<T>(static_cast<Real>(totals[c].second));
  }
  run.each(PassBack<Real>());
}

}  // namespace
}  // namespace group_norm

template <class T>
void group_norm_cpu(const GroupNormArgs<T>& a, Context& context) {
  auto p = group_norm::problem_of(a);
  p.epsilon = a.epsilon;
  p.result = a.y;
  group_norm::forward<T>(p, a.mean, a.rstd, context);
}

template <class T>
void group_norm_gradient_cpu(const GroupNormGradientArgs<T>& a, Context& context) {
  auto p = group_norm::problem_of(a);
  p.d_y = a.d_y;
  p.mean = a.mean;
  p.rstd = a.rstd;
  p.result = a.d_x;
  group_norm::backward<T>(p, a.d_scale, a.d_bias, context);
}

}  // namespace ortops
