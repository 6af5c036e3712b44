from tests.support.quiet import quiet as quiet
