// A device of torch's whose memory is the host's and whose arithmetic is the CPU's. It refuses what a
// GPU refuses: an operation on tensors of which some lie here and others on the CPU, generators of
// the CPU, and numpy. Torch calls it `privateuseone`.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr auto kHere = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

struct Memory final : at::Allocator {
  at::DataPtr allocate(size_t size) override {
    void* place = size != 0 ? std::malloc(size) : nullptr;
    return {place, place, &give_back, at::Device(kHere, 0)};
  }
  static void give_back(void* place) { std::free(place); }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kHere; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {kHere, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
};

Memory memory;
Hooks hooks;
const bool is_registered = [] {
  c10::SetAllocator(kHere, &memory);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

bool is_here(const at::Tensor& tensor) { return tensor.device().type() == kHere; }

// A tensor of the CPU in the same memory.
at::Tensor as_cpu(const at::Tensor& tensor) {
  if (!is_here(tensor)) return tensor;
  at::AutoDispatchBelowAutograd below;
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                       at::DataPtr(tensor.storage().mutable_data(), at::kCPU), nullptr, false);
  auto made = at::empty({0}, tensor.options().device(at::kCPU));
  made.set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  return made;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  as_cpu(to).copy_(as_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar value_of(const at::Tensor& tensor) { return as_cpu(tensor).item(); }

const at::Tensor& resize_(const at::Tensor& tensor, c10::SymIntArrayRef wanted,
                          std::optional<at::MemoryFormat>) {
  const auto size = C10_AS_INTARRAYREF_SLOW(wanted);
  const auto numbers = c10::multiply_integers(size) + tensor.storage_offset();
  const auto bytes = static_cast<size_t>(numbers) * tensor.element_size();
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    auto larger = memory.allocate(bytes);
    if (storage->nbytes() != 0) std::memcpy(larger.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

at::Tensor& set_place(at::Tensor& tensor, at::Storage storage, int64_t offset,
                      c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.size() == size.size()) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  return tensor;
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage) {
  const std::vector<int64_t> size{static_cast<int64_t>(storage.nbytes() / tensor.element_size())};
  return set_place(tensor, std::move(storage), 0, size, {});
}

at::Tensor& set_like(at::Tensor& tensor, const at::Tensor& other) {
  return set_place(tensor, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                       c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  std::optional<at::Tensor> added;
  if (bias.has_value() && bias->defined()) added = as_cpu(*bias);
  return at::convolution_symint(as_cpu(input), as_cpu(weight), added, stride, padding, dilation,
                                transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> wanted) {
  const std::vector<c10::SymInt> bias{weight.sym_size(transposed ? 1 : 0)};
  auto [one, two, three] = at::convolution_backward_symint(
      as_cpu(gradient), as_cpu(input), as_cpu(weight), at::OptionalSymIntArrayRef(bias), stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  const auto here = [&](const at::Tensor& each) {
    return each.defined() ? each.to(input.device()) : each;
  };
  return {here(one), here(two), here(three)};
}

// Indices and what is copied may lie on the CPU, as with CUDA.
bool may_mix(const std::string& name) {
  for (const char* each : {"aten::index.Tensor", "aten::index_put", "aten::_index_put_impl_"}) {
    if (name.rfind(each, 0) == 0) return true;
  }
  return false;
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto name = c10::toString(op.schema().operator_name());
  bool has_here = false;
  bool has_cpu = false;
  const auto look = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    has_here |= is_here(tensor);
    has_cpu |= !is_here(tensor) && tensor.dim() > 0;  // numbers may lie anywhere
  };
  for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (argument.isTensor()) {
      look(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& each : argument.toTensorVector()) look(each);
    } else if (argument.isOptionalTensorList()) {
      for (const auto& each : argument.toOptionalTensorVector()) {
        if (each.has_value()) look(*each);
      }
    } else if (argument.isGenerator()) {
      TORCH_CHECK(!argument.toGenerator().defined(), name, ": a generator of the CPU");
    }
  }
  TORCH_CHECK(!(has_here && has_cpu) || may_mix(name), name, ": tensors of two devices");
  at::native::cpu_fallback(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &value_of);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_place);
  m.impl("set_.source_Tensor", &set_like);
  m.impl("as_strided", &as_strided);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}
