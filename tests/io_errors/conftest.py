from tests.quiet import quiet as quiet
