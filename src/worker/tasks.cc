#include "worker/tasks.h"

#include "tasks/chat.h"
#include "tasks/classify.h"
#include "tasks/combine.h"
#include "tasks/export.h"
#include "tasks/generate.h"
#include "tasks/init_model.h"
#include "tasks/inspect.h"
#include "tasks/merge.h"
#include "tasks/preference.h"
#include "tasks/quantize.h"
#include "tasks/render.h"
#include "tasks/self_test.h"
#include "tasks/seq2seq.h"
#include "tasks/sft.h"
#include "tasks/summarize.h"
#include "verify/verify.h"
#include "worker/completion.h"
#include "worker/measure_rates.h"

namespace tessera::worker {

const std::vector<Task>& tasks() {
  static const std::vector<Task> table = {
      {"sft", tasks::sft},
      {"seq2seq", tasks::seq2seq},
      {"summarize", tasks::summarize},
      {"classify", tasks::classify},
      {"generate", tasks::generate},
      {"chat", tasks::chat},
      {"verify", verify::verify},
      {"merge", tasks::merge},
      {"quantize", tasks::quantize},
      {"init-model", tasks::init_model},
      {"dpo", tasks::dpo},
      {"orpo", tasks::orpo},
      {"cpo", tasks::cpo},
      {"kto", tasks::kto},
      {"reward", tasks::reward},
      {"combine", tasks::combine},
      {"inspect", tasks::inspect},
      {"export", tasks::export_checkpoint},
      {"render", tasks::render},
      {cli::kSelfTest, tasks::self_test},
      {cli::kMeasureRates, measure_rates},
      {"completion", completion},
      {"man", man},
  };
  return table;
}

}  // namespace tessera::worker
