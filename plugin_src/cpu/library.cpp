// The function by which ONNX Runtime loads the library.
#include "library.h"

#include <initializer_list>

extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(ort::SessionOptions* options,
                                                                                const ort::ApiBase* base) {
    const ort::Api* api = base->get(ort::version);
    if (!api) return nullptr;  // its sessions then refuse the operators by name
    // The domain has to live as long as the sessions: one for the process.
    static ort::Domain* domain = nullptr;
    if (!domain) {
        if (auto* status = api->create_domain("hybridge.cpu", &domain)) return status;
        for (const ort::CustomOp* op :
             {&cpu::linear_op(), &cpu::fused_linear_op(), &cpu::experts_op(), &cpu::attention_op(), &cpu::ssm_op(),
              &cpu::ssm_8bit_op(), &cpu::delta_rule_op(), &cpu::conv_op(), &cpu::gated_norm_op(),
              &cpu::paged_attention_op(), &cpu::token_attention_op(), &cpu::widen_state_op(), &cpu::round_state_op()}) {
            if (auto* status = api->add_op(domain, op)) return status;
        }
    }
    return api->add_domain(options, domain);
}
