import { init, graphic, use } from "echarts/core";
import { BarChart, CustomChart, LineChart } from "echarts/charts";
import { AriaComponent, DataZoomInsideComponent, DataZoomSliderComponent, GridComponent, MarkLineComponent, TooltipComponent } from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";
use([BarChart, CustomChart, LineChart, AriaComponent, DataZoomInsideComponent, DataZoomSliderComponent, GridComponent, MarkLineComponent, TooltipComponent, CanvasRenderer]);
export { init, graphic };
