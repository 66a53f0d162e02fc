"""The private parts of pytest that the plugin for ranks stands on."""

import pytest
from _pytest.capture import CaptureManager, MultiCapture
from _pytest.config import Config
from _pytest.subtests import SubtestReport

CHANGED = "pytest has changed: "


def test_a_session_knows_what_is_set_up_and_its_finalizers(request):
    stack = request.session._setupstate.stack
    assert request.node in stack, CHANGED + "the stack of what is set up"
    for finalizers, _ in stack.values():
        assert isinstance(finalizers, list), CHANGED + "the finalizers of a node"


def test_a_fixture_keeps_its_finalizers_in_a_list(request, tmp_path):
    definition = request._fixture_defs["tmp_path"]
    assert isinstance(definition, pytest.FixtureDef)
    assert hasattr(definition._finalizers, "clear"), CHANGED + "the finalizers of a fixture"


def test_the_capture_of_descriptors_can_be_replaced(request):
    manager = request.config.pluginmanager.getplugin("capturemanager")
    assert isinstance(manager, CaptureManager), CHANGED + "the plugin that captures"
    assert hasattr(manager, "_global_capturing"), CHANGED + "where it keeps the capture of descriptors"
    capture = MultiCapture(in_=None, out=None, err=None)
    capture.start_capturing()
    assert capture.readouterr() == ("", ""), CHANGED + "a capture of nothing"
    capture.stop_capturing()


def test_the_folders_of_tests_have_a_base_that_can_be_replaced(request, tmp_path_factory):
    assert request.config._tmp_path_factory is tmp_path_factory, CHANGED + "where the factory is kept"
    assert hasattr(tmp_path_factory, "_basetemp"), CHANGED + "the base of the factory"


def test_a_configuration_is_made_from_options_and_arguments(request):
    options = {name: value for name, value in vars(request.config.option).items() if name != "file_or_dir"}
    config = Config.fromdictargs(options | {"verbose": 0}, [])
    try:
        assert config.option.verbose == 0, CHANGED + "options from a mapping"
    finally:
        config._ensure_unconfigure()


def test_the_sections_of_an_item_are_a_list(request):
    assert isinstance(request.node._report_sections, list), CHANGED + "the sections of a report"


def test_a_plugin_can_be_removed_from_one_hook(request):
    hook = request.config.hook.pytest_runtest_logreport
    assert all(hasattr(each, "plugin") for each in hook.get_hookimpls()), CHANGED + "the implementations of a hook"
    assert callable(hook._remove_plugin), CHANGED + "the removal of a plugin from one hook"


def test_the_report_of_a_subtest_has_its_name():
    assert isinstance(SubtestReport.head_line, property), CHANGED + "the name of a subtest"
